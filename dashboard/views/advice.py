"""Advice on a run with its evidence, a button that applies it, and the change observed afterwards."""

import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from dashboard import ticks
from dashboard.commands import send_settings, try_settings
from dashboard.components import heading, plain
from dashboard.controls import disabled_reason, unmeasurable_reason
from dashboard.data import advice as advice_data
from dashboard.data import runs as run_data
from dashboard.data.advice import SOURCE, AdviceResult
from dashboard.data.runs import RunView
from dashboard.views.changes import change_line
from dashboard.views.measuring import outcome
from harness import words
from harness.analysis.advice import RULES, Suggestion
from harness.records.run import CommandKind
from harness.settings.spec import SPECS, change_title, value_text
from harness.supervisor.measuring import Measurement

_RULES = {rule.key: rule for rule in RULES}
_HELP = (
    "Advice based on the latest steady-state steps with the settings in effect. The gain is a bound derived "
    "from the evidence. Applying advice changes the run immediately. The change shown afterwards is "
    "observed; it does not prove the cause."
)


def panel(tick: ticks.AdviceTick) -> None:
    """Draw the advice on a run; nothing while there are too few steps."""
    view, result = tick.view, tick.result
    if not result.suggestions and not result.requests and not result.outcomes:
        if result.steps >= _MIN_STEPS:
            st.caption(f":material/task_alt: No advice: {_nothing(result)}")
        return
    with st.container(border=True, key="advice", gap="small"):
        heading("Advice", help=_HELP)
        for change in result.requests:
            change_line(change)
        for measurement in result.outcomes:
            outcome(measurement)
        for suggestion in result.suggestions:
            _card(view, suggestion, result.measured_effect(suggestion.change))
        if not result.suggestions:
            st.caption(f"No further advice: {_nothing(result)}")


# Fewer steady-state steps do not support the statement that nothing stands out.
_MIN_STEPS = 100


def _nothing(result: AdviceResult) -> str:
    return f"nothing stands out in the last {words.plural(result.steps, 'steady-state step')}."


def tick(view: RunView, stamp: tuple[int, ...]) -> ticks.AdviceTick:
    """Return the advice as of the log's `stamp`: the last one if nothing is new."""
    command_id = run_data.newest_command_id(view.folder)
    token = (view.folder.run_id, stamp, command_id, view.status.state)
    last = ticks.last_advice()
    if last is not None and last.token == token:
        return last
    now = view if view.status.state.is_over else run_data.read_view(view.folder)
    made = ticks.AdviceTick(token, now, advice_data.read(now))
    ticks.store_advice(made)
    return made


def _card(view: RunView, suggestion: Suggestion, measurement: Measurement | None) -> None:
    with st.container(border=True, key=f"advice_{suggestion.rule.replace('-', '_')}", gap="xsmall"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            heading(plain(suggestion.title), level=3)
            st.badge(
                plain(suggestion.gain.sentence), color="blue" if suggestion.gain.share is None else "green"
            )
            st.space("stretch")
            if suggestion.change:
                _apply(view, suggestion)
        st.markdown(plain(suggestion.evidence))
        if measurement is not None:
            outcome(measurement)
        if suggestion.code:
            st.code(suggestion.code, language="python", wrap_lines=True)
        if not suggestion.change and suggestion.by_hand:
            st.caption(plain(suggestion.by_hand))
        with st.expander("Evidence and rationale"):
            _evidence(suggestion)


def _apply(view: RunView, suggestion: Suggestion) -> None:
    """Draw the button for an active run; for a finished one, the values to set in the next run."""
    title = change_title(suggestion.change)
    if disabled_reason(view) is not None:
        st.caption(f"For the next run: {plain(title)}", width="content")
        return
    waits = any(
        command.kind == CommandKind.MEASURE
        or (command.kind == CommandKind.SET and suggestion.change.items() <= command.values.items())
        for command in view.pending
    )
    unmeasurable = unmeasurable_reason(view)
    st.button(
        plain(f"Try {title}"),
        key=_button_key("try", suggestion),
        icon=":material/experiment:",
        disabled=waits or unmeasurable is not None,
        help=plain(
            unmeasurable or f"Measures {title} in randomized pairs of blocks, and keeps it if it is faster."
        ),
        on_click=try_settings,
        args=(view.folder, suggestion.change, SOURCE),
    )
    st.button(
        plain(f"Apply {title}"),
        key=_button_key("apply", suggestion),
        icon=":material/bolt:",
        disabled=waits,
        help=plain(_difference(view, suggestion.change)),
        on_click=send_settings,
        args=(view.folder, suggestion.change, SOURCE),
    )


def _button_key(action: str, suggestion: Suggestion) -> str:
    """Return a key of the values too: a click that arrives after they have changed was not for the new
    ones."""
    values = (f"{name}_{value}" for name, value in suggestion.change.items())
    return re.sub(r"\W", "_", "_".join([action, suggestion.rule, *values]))


def _difference(view: RunView, change: Mapping[str, Any]) -> str:
    """Return the old and new values: "Loader workers: 0 → 4"."""
    now = {} if view.settings is None else view.settings.to_json()
    lines = [
        f"{SPECS[name].label}: {value_text(SPECS[name], now.get(name))} → {value_text(SPECS[name], value)}"
        for name, value in change.items()
    ]
    return "; ".join(lines)


def _evidence(suggestion: Suggestion) -> None:
    steps = words.step_range(suggestion.first_step, suggestion.last_step).capitalize()
    lines = [f"- {plain(name)}: **{plain(value)}**" for name, value in suggestion.details]
    st.markdown(f"{steps}\n\n" + "\n".join(lines))
    st.markdown(plain(suggestion.why))
    if suggestion.by_hand and suggestion.change:
        st.markdown(f"By hand: {plain(suggestion.by_hand)}")
    rule = _RULES[suggestion.rule]
    # Markdown of our own, as in docs/advice.md.
    st.caption(f"Condition: {rule.threshold}. Source: {rule.source}.")

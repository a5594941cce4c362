"""Advice on a run with its evidence, a button that applies it, and the change observed afterwards."""

from collections.abc import Mapping
from typing import Any

import streamlit as st

from dashboard import state
from dashboard.asking import ask_change
from dashboard.components import plain
from dashboard.controls import why_not
from dashboard.data import advice as advice_data
from dashboard.data import runs as run_data
from dashboard.data.advice import SOURCE, Advised
from dashboard.data.changes import settings_title
from dashboard.data.runs import Look
from dashboard.views.changes import change_line
from harness import words
from harness.analysis.advice import RULES, Suggestion
from harness.config import SPECS, value_text
from harness.records import CommandKind

_RULES = {rule.key: rule for rule in RULES}
_HELP = (
    "Advice based on the latest steady-state steps with the settings in effect. The gain is a bound derived "
    "from the evidence. Applying advice changes the run immediately. The change shown afterwards is "
    "observed; it does not prove the cause."
)


def panel(tick: state.AdviceTick) -> None:
    """Draw the advice on a run; nothing while there are too few steps."""
    seen, advised = tick.seen, tick.advised
    if not advised.suggestions and not advised.requests:
        if advised.looked_at >= _MIN_STEPS:
            st.caption(f":material/task_alt: No advice: {_nothing(advised)}")
        return
    with st.container(border=True, key="advice", gap="small"):
        st.markdown("**Advice**", help=_HELP)
        for change in advised.requests:
            change_line(change)
        for told in advised.suggestions:
            _card(seen, told)
        if not advised.suggestions:
            st.caption(f"No further advice: {_nothing(advised)}")


# Fewer steady-state steps do not support the statement that nothing stands out.
_MIN_STEPS = 100


def _nothing(advised: Advised) -> str:
    return f"nothing stands out in the last {words.plural(advised.looked_at, 'steady-state step')}."


def tick(seen: Look, stamp: tuple[int, ...]) -> state.AdviceTick:
    """Return the advice as of the log's `stamp`: the last one if nothing is new."""
    asked = len(run_data.read_commands(seen.folder))
    token = (seen.folder.run_id, stamp, asked, seen.status.state)
    last = state.last_advice()
    if last is not None and last.token == token:
        return last
    now = seen if seen.status.state.is_over else run_data.look(seen.folder)
    made = state.AdviceTick(token, now, advice_data.read(now))
    state.keep_advice(made)
    return made


def _card(seen: Look, told: Suggestion) -> None:
    with st.container(border=True, key=f"advice_{told.rule.replace('-', '_')}", gap="xsmall"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            st.markdown(f"**{plain(told.title)}**", width="content")
            st.badge(plain(told.gain.sentence), color="blue" if told.gain.share is None else "green")
            st.space("stretch")
            if told.change:
                _apply(seen, told)
        st.markdown(plain(told.evidence))
        if not told.change:
            st.caption(plain(told.by_hand))
        with st.expander("Evidence and rationale"):
            _evidence(told)


def _apply(seen: Look, told: Suggestion) -> None:
    """Draw the button for an active run; for a finished one, the values to set in the next run."""
    title = settings_title(told.change)
    if why_not(seen) is not None:
        st.caption(f"For the next run: {plain(title)}", width="content")
        return
    waits = any(
        command.kind == CommandKind.SET and told.change.items() <= command.values.items()
        for command in seen.waiting
    )
    st.button(
        f"Apply {title}",
        key=f"apply_{told.rule.replace('-', '_')}",
        icon=":material/bolt:",
        disabled=waits,
        help=plain(_difference(seen, told.change)),
        on_click=ask_change,
        args=(seen.folder, told.change, SOURCE),
    )


def _difference(seen: Look, change: Mapping[str, Any]) -> str:
    """Return the old and new values: "Loader workers: 0 → 4"."""
    now = {} if seen.settings is None else seen.settings.model_dump(mode="json")
    lines = [
        f"{SPECS[name].label}: {value_text(SPECS[name], now.get(name))} → {value_text(SPECS[name], value)}"
        for name, value in change.items()
    ]
    return "; ".join(lines)


def _evidence(told: Suggestion) -> None:
    span = f"{words.count(told.first_step)} to {words.count(told.last_step)}"
    lines = [f"- {plain(name)}: **{plain(value)}**" for name, value in told.details]
    st.markdown(f"Steps {span}\n\n" + "\n".join(lines))
    st.markdown(plain(told.why))
    if told.by_hand and told.change:
        st.markdown(f"By hand: {plain(told.by_hand)}")
    rule = _RULES[told.rule]
    st.caption(f"Condition: {plain(rule.threshold)}. Source: {plain(rule.source)}.")

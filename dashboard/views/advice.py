"""What next: advice with its evidence, a button that applies it, and what could be seen to change then."""

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
    "Advice from the newest steps under the settings in effect. What is won is a bound that follows from the "
    "evidence. Applying it changes the run at once; what is shown afterwards is what could be observed, "
    "which does not prove what caused it."
)


def panel(tick: state.AdviceTick) -> None:
    """The advice on a run; nothing while there are too few steps to say anything."""
    seen, advised = tick.seen, tick.advised
    if not advised.suggestions and not advised.requests:
        if advised.looked_at >= _SAID_FROM:
            st.caption(f":material/task_alt: No advice: {_nothing(advised)}")
        return
    with st.container(border=True, key="advice", gap="small"):
        st.markdown("**What next**", help=_HELP)
        for change in advised.requests:
            change_line(change)
        for told in advised.suggestions:
            _card(seen, told)
        if not advised.suggestions:
            st.caption(f"No further advice: {_nothing(advised)}")


_SAID_FROM = 100
"""Settled steps from which on it is worth saying that nothing stands out."""


def _nothing(advised: Advised) -> str:
    return f"nothing stands out in the last {words.plural(advised.looked_at, 'settled step')}."


def tick(seen: Look, stamp: tuple[int, ...]) -> state.AdviceTick:
    """The advice as of the log's `stamp`: the last, when nothing is new."""
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
        with st.expander("Evidence, and why"):
            _evidence(told)


def _apply(seen: Look, told: Suggestion) -> None:
    """The button for a run that goes on; for one that is over, what to set in the next one."""
    title = settings_title(told.change)
    if why_not(seen) is not None:
        st.caption(f"In the next run: {plain(title)}", width="content")
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
    """What would change: "Loader workers: 0 → 4"."""
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
    st.caption(f"Said when: {plain(rule.threshold)}. Source: {plain(rule.source)}.")

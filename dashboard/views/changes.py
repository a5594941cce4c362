"""The list of requests under the live chart, each with its result and its observed change."""

from collections.abc import Sequence

import streamlit as st

from dashboard.components import heading, plain
from dashboard.data.changes import ChangeEntry
from harness import words
from harness.analysis.effect import ObservedChange
from harness.records.run import CommandState

_BADGES = {
    CommandState.QUEUED: ("blue", ":material/schedule:"),
    CommandState.APPLIED: ("green", ":material/check:"),
    CommandState.REJECTED: ("red", ":material/block:"),
    CommandState.EXPIRED: ("gray", ":material/timer_off:"),
    CommandState.ROLLED_BACK: ("orange", ":material/undo:"),
}
_IMPOSED_BADGE = ("gray", ":material/info:")


def request_pill(newest: Sequence[ChangeEntry]) -> None:
    """Draw the newest request with its result, for the page's head."""
    for change in newest:
        color, icon = _badge(change)
        st.badge(
            f"{plain(change.title)} · {outcome(change)}",
            icon=icon,
            color=color,  # type: ignore[arg-type]  # a Literal
            help=plain(change.message) if change.message else None,
        )


def _badge(change: ChangeEntry) -> tuple[str, str]:
    return _IMPOSED_BADGE if change.is_imposed else _BADGES[change.state]


def outcome(change: ChangeEntry) -> str:
    """Return the result of a request: "queued", "applied at step 12,345", "rejected"; "changed at step
    12,345" for a change without a request."""
    if change.is_imposed:
        return f"changed at step {words.count(change.step)}"
    word = change.state.value.replace("_", " ")
    if change.step is None or change.state in (CommandState.QUEUED, CommandState.EXPIRED):
        return word
    return f"{word} at step {words.count(change.step)}"


def change_list(changes: Sequence[ChangeEntry]) -> None:
    """Draw the requests, newest first, each with its result and its observed change."""
    if not changes:
        return
    with st.container(border=True, key="changes", gap="xsmall"):
        heading(
            "Changes",
            help="Requests to this run and their results. An observed change compares steady-state steps "
            "over equal times before and after it, and accounts for how much this run varies without a "
            "change; it does not prove the cause. Two figures of the step are compared, and the one with the "
            "narrower interval is stated: the undisturbed step, a low percentile of step time, which other "
            "processes delay least; and on the CPU the step at equal machine speed, scaled by a fixed piece "
            "of work that is timed between steps.",
        )
        for change in changes:
            change_line(change)


def change_line(change: ChangeEntry) -> None:
    """Draw a request with its result, its message and its observed change."""
    color, icon = _badge(change)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        with st.container(width=185):
            st.badge(outcome(change), icon=icon, color=color)  # type: ignore[arg-type]  # a Literal
        with st.container(width=200):
            st.text(change.title)
        if change.message and (change.is_imposed or change.state is not CommandState.APPLIED):
            st.text(change.message)
        if change.observed is not None:
            _observed(change.observed)


def _observed(observed: ObservedChange) -> None:
    figures = (
        (observed.step_name, observed.step_ns, words.fine_duration),
        ("per sample", observed.sample_ns, words.fine_duration),
        ("throughput", observed.samples_per_s, words.fine_rate),
        ("peak", observed.peak_bytes, words.size),
    )
    visible = [
        (name, effect, text) for name, effect, text in figures if effect is not None and effect.is_visible
    ]
    for name, effect, text in visible:
        st.badge(
            f"{name} {text(effect.before)} → {text(effect.after)} ({words.relative(effect.ratio - 1)})",
            color="blue",
            help=f"{words.relative(effect.low - 1)} to {words.relative(effect.high - 1)}, compared over "
            f"{observed.seconds:.0f} s on each side.",
        )
    if not visible:
        st.caption(plain(observed.verdict), width="content")
    if observed.left_out:
        st.caption(f"{words.plural(observed.left_out, 'transition step')} excluded", width="content")

"""Whether memory leaks: the verdict that stands on each series, with its evidence."""

from collections.abc import Sequence

import streamlit as st

from dashboard.components import plain
from dashboard.data.runs import Look
from harness import words
from harness.memory_records import LeakRow, LeakSeries, LeakVerdict
from harness.records import EventRow

_LOOK = {
    LeakVerdict.TOO_EARLY: ("gray", ":material/hourglass_top:"),
    LeakVerdict.WARM_UP: ("gray", ":material/local_fire_department:"),
    LeakVerdict.STEADY: ("green", ":material/check:"),
    LeakVerdict.SAWTOOTH: ("green", ":material/show_chart:"),
    LeakVerdict.WATCH: ("orange", ":material/trending_up:"),
    LeakVerdict.LEAK: ("red", ":material/water_drop:"),
}
_SERIES = {
    LeakSeries.ALLOCATED: "What live tensors hold at the end of each step. A rise is tensors that something "
    "still refers to.",
    LeakSeries.FRAGMENTATION: "What the allocator holds and no tensor uses. A rise is free memory in pieces "
    "too small for what is asked.",
    LeakSeries.HOST: "The process's memory beside its tensors: Python objects and libraries.",
    LeakSeries.WORKERS: "The memory of the processes that load data.",
}


def leak_list(leaks: Sequence[LeakRow], seen: Look, injected: Sequence[EventRow]) -> None:
    """A line for each series that is watched."""
    st.markdown(
        "**Does it leak?**",
        help="Each series is watched over the steps, changes of settings left out. A verdict needs a rise "
        "that is sure, worth the name and does not recover, and can be taken back when it levels off.",
    )
    if injected or (seen.asked is not None and seen.asked.inject):
        st.caption(
            ":material/bug_report: A fault was put into this run on purpose: what is found here was sought."
        )
    if not leaks:
        st.caption("n/a: no verdict yet. The first comes after some dozens of settled steps.")
    for row in leaks:
        _leak(row)


def _leak(row: LeakRow) -> None:
    verdict = LeakVerdict(row.verdict)
    color, icon = _LOOK[verdict]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"leak_{row.series}"):
        with st.container(width=128):
            st.badge(_word(row), icon=icon, color=color)  # type: ignore[arg-type]  # a Literal
        with st.container(width=150):
            st.markdown(row.series, help=_SERIES[LeakSeries(row.series)])
        for text, meaning in _figures(row):
            st.badge(text, color="gray", help=meaning)
    if verdict in (LeakVerdict.LEAK, LeakVerdict.WATCH):
        st.text(row.message)
    else:
        st.caption(plain(row.message))
    if row.cause:
        st.caption(f":material/lightbulb: {plain(row.cause)}")


def _word(row: LeakRow) -> str:
    """The verdict in a word or two; free memory in pieces grows, it does not leak."""
    if row.verdict == LeakVerdict.LEAK and row.series == LeakSeries.FRAGMENTATION:
        return "growing"
    return row.verdict


def _figures(row: LeakRow) -> list[tuple[str, str]]:
    """The numbers behind a verdict, each with its meaning; what is not known is left to the message."""
    found = []
    if row.bytes_per_step is not None:
        meaning = "The middle of the slopes between all pairs of looks (Theil and Sen), in bytes a step."
        found.append((f"{words.size(row.bytes_per_step)} a step", meaning))
    if row.low is not None and row.high is not None:
        meaning = "The true slope lies in here with 95 % confidence."
        found.append((f"{words.size(row.low)} to {words.size(row.high)}", meaning))
    if row.steps_to_oom is not None:
        meaning = "If it goes on like this, memory runs out after so many steps more."
        text = (
            f"out of memory in {words.plural(row.steps_to_oom, 'step')}"
            if row.steps_to_oom
            else "at the limit"
        )
        found.append((text, meaning))
    if row.risen_bytes is not None and row.verdict in (LeakVerdict.LEAK, LeakVerdict.WATCH):
        meaning = "How much more it is than at the first step looked at."
        found.append(
            (f"risen by {words.size(row.risen_bytes)} since step {words.count(row.since_step)}", meaning)
        )
    if row.detection_limit is not None:
        meaning = "A smaller slope than this could not have been told from the noise by now."
        found.append((f"sees {words.size(row.detection_limit)} a step and more", meaning))
    return found

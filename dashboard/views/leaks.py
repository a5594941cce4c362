"""Leak detection: the current verdict on each memory series, with its evidence."""

from collections.abc import Sequence

import streamlit as st

from dashboard.components import heading, plain
from dashboard.data.runs import RunView
from harness import words
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import EventRow

_BADGES = {
    LeakVerdict.TOO_EARLY: ("gray", ":material/hourglass_top:"),
    LeakVerdict.WARM_UP: ("gray", ":material/local_fire_department:"),
    LeakVerdict.STEADY: ("green", ":material/check:"),
    LeakVerdict.SAWTOOTH: ("green", ":material/show_chart:"),
    LeakVerdict.WATCH: ("orange", ":material/trending_up:"),
    LeakVerdict.LEAK: ("red", ":material/water_drop:"),
}
_SERIES = {
    LeakSeries.ALLOCATED: "Memory of live tensors at the end of each step. A rise means that something keeps "
    "references to tensors.",
    LeakSeries.FRAGMENTATION: "Memory reserved by the allocator that no tensor uses. A rise means that free "
    "blocks are too small for new allocations.",
    LeakSeries.HOST: "Process memory outside of tensors: Python objects and libraries.",
    LeakSeries.WORKERS: "Memory of the DataLoader's worker processes.",
}


def leak_list(leaks: Sequence[LeakRow], view: RunView, injected: Sequence[EventRow]) -> None:
    """Draw a line for each monitored series."""
    heading(
        "Leak detection",
        help="Each series is analyzed over the steps, without those around changes of settings. A leak "
        "verdict needs a rise that is statistically significant, large enough to matter and does not "
        "recover. It is withdrawn when the series levels off.",
    )
    if injected or (view.initial_settings is not None and view.initial_settings.get("inject")):
        st.caption(
            ":material/bug_report: A fault was injected into this run on purpose: these verdicts reflect it."
        )
    if not leaks:
        st.caption("n/a: no verdict. The first one needs a few dozen steady-state steps.")
    for row in leaks:
        _leak(row, view.status.state.is_over)


def _leak(row: LeakRow, is_over: bool) -> None:
    verdict = LeakVerdict(row.verdict)
    color, icon = _BADGES[verdict]
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key=f"leak_{row.series}"):
        with st.container(width=128):
            st.badge(_word(row), icon=icon, color=color)  # type: ignore[arg-type]  # a Literal
        with st.container(width=150):
            st.markdown(row.series, help=_SERIES[LeakSeries(row.series)])
        for text, meaning in _figures(row, is_over):
            st.badge(text, color="gray", help=meaning)
    if verdict in (LeakVerdict.LEAK, LeakVerdict.WATCH):
        # The time that is left was estimated at that step.
        st.text(f"At step {words.count(row.step)}: {row.message}" if is_over else row.message)
    else:
        st.caption(plain(row.message))
    if row.cause:
        st.caption(f":material/lightbulb: {plain(row.cause)}")


def _word(row: LeakRow) -> str:
    """Return the verdict in a word or two. Fragmentation grows; it does not leak."""
    if row.verdict == LeakVerdict.LEAK and row.series == LeakSeries.FRAGMENTATION:
        return "growing"
    return row.verdict


def _figures(row: LeakRow, is_over: bool) -> list[tuple[str, str]]:
    """Return the numbers behind a verdict as (text, meaning); missing ones are explained by the message. Of a
    run that is over nothing is projected."""
    figures = []
    if row.bytes_per_step is not None:
        meaning = (
            "Median of the slopes between all pairs of samples (Theil–Sen estimator), in bytes per step."
        )
        figures.append((f"{words.size(row.bytes_per_step)} per step", meaning))
    if row.low is not None and row.high is not None:
        meaning = "95 % confidence interval of the slope."
        figures.append((f"{words.size(row.low)} to {words.size(row.high)}", meaning))
    if row.steps_to_oom is not None and not is_over:
        meaning = "If the trend continues, memory runs out after this many more steps."
        text = (
            f"out of memory in {words.estimate(row.steps_to_oom, 'step')}"
            if row.steps_to_oom
            else "at the limit"
        )
        figures.append((text, meaning))
    if row.risen_bytes is not None and row.verdict in (LeakVerdict.LEAK, LeakVerdict.WATCH):
        meaning = "Increase since the first step analyzed."
        figures.append(
            (f"risen by {words.size(row.risen_bytes)} since step {words.count(row.since_step)}", meaning)
        )
    if row.detection_limit is not None:
        meaning = "The smallest slope that can be distinguished from noise so far."
        figures.append((f"detection limit {words.size(row.detection_limit)} per step", meaning))
    return figures

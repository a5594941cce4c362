"""The ranks of a run of several processes, on the Live page."""

import streamlit as st

from dashboard import canvas, state
from dashboard.charts.phases import ClockBar, stacked
from dashboard.charts.ranks import heat_map
from dashboard.components import count_column, decimal_column, heading, plain, size_column, table
from dashboard.data import ranks as rank_data
from dashboard.data.ranks import RanksView
from dashboard.data.runs import RunView
from harness import words
from harness.analysis.ranks.stragglers import LEAST_STEPS, NEWEST, RankComparison

_REFRESH_S = 2.0
_MS = 1e6

_HELP = (
    "Ranks that average gradients end each backward pass together. A rank's own time is that of its step "
    "without the wait at the end of the backward pass; the rank with the longest own time makes the others "
    "wait. The wait is measured with DDP on the CPU; elsewhere the whole backward pass stands for it."
)


def section(view: RunView) -> None:
    """Draw the ranks; nothing for a run of one process."""
    if not rank_data.has_ranks(view.folder):
        return
    with st.container(border=True, key="ranks"):
        heading("Ranks", help=_HELP)
        st.fragment(_section, run_every=None if view.status.state.is_over else _REFRESH_S)(view)


def _section(view: RunView) -> None:
    ranks = rank_data.read(view.folder)
    comparison = ranks.comparison
    with st.container():
        if comparison is None:
            st.caption(f"The ranks are compared once they have {LEAST_STEPS} steps in common.")
        elif comparison.straggler is None:
            st.text(comparison.sentence)
        else:
            st.warning(plain(comparison.sentence), icon=":material/hourglass_bottom:")
    if ranks.machines:
        st.caption(plain(ranks.machines))
    table(_rows(ranks), columns=_COLUMNS, height="content", alt="The ranks of the run.")
    if comparison is None:
        return
    st.caption(plain(_clocks(comparison)))
    bars = [ClockBar(f"rank\u00a0{rank}", times) for rank, times in sorted(ranks.phases.items())]
    left, right = st.columns(2)
    with left:
        st.caption("Phases of a step, by rank.")
        if bars:
            canvas.live_plotly(stacked(bars, f"{view.folder.run_id}/ranks"), key=state.Key.RANK_PHASES)
    with right:
        st.caption("Own time beyond the median rank's, in ms, by step.")
        canvas.live_plotly(heat_map(comparison, f"{view.folder.run_id}/late"), key=state.Key.RANK_LATE)


def _rows(ranks: RanksView) -> list[dict[str, object]]:
    times = {} if ranks.comparison is None else {rank.rank: rank for rank in ranks.comparison.ranks}
    rows: list[dict[str, object]] = []
    has_machines = len({facts.host for facts in ranks.facts if facts.host}) > 1
    for facts in ranks.facts:
        own = times.get(facts.rank)
        rows.append(
            {
                "rank": facts.rank,
                "machine": facts.host if has_machines else None,
                "state": facts.sentence,
                "step_ms": None if own is None else own.step_ns / _MS,
                "own_ms": None if own is None else own.own_ns / _MS,
                "waits_ms": None if own is None else own.waiting_ns / _MS,
                "peak_bytes": None if own is None else own.peak_allocated_bytes,
            }
        )
    return rows


_COLUMNS = {
    "rank": count_column("Rank", width="small"),
    "machine": st.column_config.TextColumn("Machine", width="small"),
    "state": st.column_config.TextColumn("State", width="medium"),
    "step_ms": decimal_column("Step, ms", 2, f"Median of the newest {NEWEST} steps."),
    "own_ms": decimal_column(
        "Own time, ms", 2, "Of a step without the wait at the end of its backward pass."
    ),
    "waits_ms": decimal_column(
        "Waits, ms",
        2,
        "For other ranks, in the backward pass: by which its wait is longer than the shortest one.",
    ),
    "peak_bytes": size_column("Peak", "Allocated; the highest of the compared steps."),
}


def _clocks(comparison: RankComparison) -> str:
    spread_ns = max(rank.clock_spread_ns for rank in comparison.ranks)
    steps = words.step_range(comparison.first_step, comparison.last_step).capitalize()
    all_reduce = (
        ""
        if comparison.all_reduce_ns is None
        else f" · all-reduce {words.duration(comparison.all_reduce_ns)} after its gradients"
    )
    return (
        f"{steps} · begin of waiting differs by {words.duration(comparison.skew_ns)} between the first "
        f"and the last rank{all_reduce} · clocks aligned by the end of the backward pass, within "
        f"{words.duration(spread_ns)}"
    )

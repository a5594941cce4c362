"""The tables of the Profiler page: phases, slowest steps, and two versions of the settings side by side."""

import streamlit as st

from dashboard.components import count_column, decimal_column, percent_column, plain, table
from harness import words
from harness.analysis.timing.phase_change import PhaseChange, PhaseComparison
from harness.analysis.timing.phases import ClockTimes, StepPart, part_label
from harness.supervisor.timing import RunTiming

_MS = 1e6
# A larger share of the wall time outside of steps is explained.
_SOUND = 0.01


def notes(run: RunTiming) -> None:
    """Draw the basis of the figures in one line: the steps analyzed, and whether phases add up."""
    timing = run.timing
    if timing.first is None or timing.last is None:
        return
    parts = [words.step_range(timing.first, timing.last).capitalize()]
    if run.stride > 1:
        parts.append(f"one step in {run.stride} sampled")
    if run.versions > 1:
        parts.append(f"under {run.versions} versions of the settings")
    if timing.left_out:
        parts.append(f"{words.plural(timing.left_out, 'flagged step')} excluded")
    if timing.unsound_steps:
        parts.append(f"in {words.plural(timing.unsound_steps, 'step')} the phases exceed the step")
    elif timing.cpu is not None:
        parts.append("phases and rest sum to the step")
    if timing.wall_ns and timing.between_steps_ns is not None:
        share = 1 - timing.between_steps_ns / timing.wall_ns
        between = " (evaluation, pauses and changes are the rest)" if share < 1 - _SOUND else ""
        parts.append(f"the steps cover {100 * share:.2f} % of the wall time{between}")
    st.caption(plain(" · ".join(parts)), help=_LEFT_OUT if timing.left_out else None)


_LEFT_OUT = (
    "Excluded from all statistics: warm-up steps, steps right after a change, and steps recorded for a "
    "profile or a snapshot."
)


def phase_table(run: RunTiming) -> None:
    """Draw every phase on each clock."""
    cpu, device = run.timing.cpu, run.timing.device
    if cpu is None:
        return
    rows = _rows(cpu, "CPU, issue time" if run.is_asynchronous else "CPU")
    if device is not None:
        rows += _rows(device, "device")
    table(rows, columns=_PHASE_COLUMNS, height="content", alt="Times of each phase of a step.")


def _rows(times: ClockTimes, clock: str) -> list[dict[str, object]]:
    spreads = [
        (part_label(part_times.part), part_times.spread, part_times.share) for part_times in times.parts
    ]
    return [
        {
            "phase": name,
            "clock": clock,
            "p50_ms": spread.p50 / _MS,
            "p95_ms": spread.p95 / _MS,
            "p99_ms": spread.p99 / _MS,
            "mean_ms": spread.mean / _MS,
            "share_pct": 100 * share,
        }
        for name, spread, share in [*spreads, ("step", times.step, 1 - times.share(StepPart.GAP))]
    ]


_PHASE_COLUMNS = {
    "phase": st.column_config.TextColumn("Phase"),
    "clock": st.column_config.TextColumn(
        "Clock", help="Issue time: CPU time to issue work that the device executes later."
    ),
    **{f"{name}_ms": decimal_column(f"{name}, ms", 3) for name in ("p50", "p95", "p99", "mean")},
    "share_pct": percent_column("Share", "Of the total step time; on the device's clock with the gaps."),
}


def slow_table(run: RunTiming) -> None:
    """Draw the slowest steps with the phase that stands out and the events of each."""
    if not run.slow:
        st.caption("No steady-state step took more than 1.1 times the median.")
        return
    title = "The slowest sampled steps" if run.stride > 1 else "The slowest steps"
    st.caption(f"{title}. A phase stands out when it accounts for half of the time beyond the median.")
    rows = [
        {
            "step": slow.step,
            "took_ms": slow.step_ns / _MS,
            "times_median": slow.times_median,
            "stands_out": "no single phase" if slow.part is None else part_label(slow.part),
            "part_ms": None if slow.part_ns is None else slow.part_ns / _MS,
            "happened": ", ".join(slow.happened),
        }
        for slow in run.slow
    ]
    table(rows, columns=_SLOW_COLUMNS, height="content", alt="The slowest steps.")


_SLOW_COLUMNS = {
    "step": count_column("Step"),
    "took_ms": decimal_column("Time, ms", 2),
    "times_median": decimal_column("× median", 2),
    "stands_out": st.column_config.TextColumn("Stands out", help="On the CPU's clock."),
    "part_ms": decimal_column("Its time, ms", 2),
    "happened": st.column_config.TextColumn("Events", width="medium"),
}


def comparison(compared: PhaseComparison, before: str, after: str) -> None:
    """Draw the medians of two ranges and the observed difference, which does not prove a cause."""
    step = compared.changes[0]
    sentence = f"Observed: a step takes {words.milliseconds(step.before_ns)} under {before} and "
    sentence += f"{words.milliseconds(step.after_ns)} under {after}{_percent(step)}."
    st.text(sentence)
    clock = "the device's clock" if compared.is_device else "the CPU's clock"
    st.caption(
        f"Medians, phases on {clock}. Comparing successive ranges cannot prove the cause of a difference."
    )
    rows = [
        {
            "phase": "step" if change.part is None else part_label(change.part),
            "before_ms": change.before_ns / _MS,
            "after_ms": change.after_ns / _MS,
            "change_pct": change.percent,
        }
        for change in compared.changes
    ]
    columns = {
        "phase": st.column_config.TextColumn("Phase"),
        "before_ms": decimal_column(f"{before}, ms", 3),
        "after_ms": decimal_column(f"{after}, ms", 3),
        "change_pct": percent_column("Observed change", sign="+"),
    }
    table(rows, columns=columns, height="content", alt="Medians of two ranges and their difference.")


def _percent(change: PhaseChange) -> str:
    return "" if change.percent is None else f" ({change.percent:+.0f} %)".replace("-", "−")

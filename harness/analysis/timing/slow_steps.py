"""The slowest steps of a range, each with its dominant phase and the events at that time. Pure functions."""

from collections.abc import Sequence
from typing import NamedTuple

from harness.analysis.timing.phases import ClockTimes, StepPart
from harness.records.run import EXCLUDED_FLAGS, EventKind, EventRow, StepRow

MOST = 8
# Smallest share of a step's time beyond the median from which a phase is reported as its cause.
STANDS_OUT = 0.5
# Smallest ratio to the median of a slow step.
SLOW = 1.1


class SlowStep(NamedTuple):
    """One slow step; `part` is None where no phase dominates. Times in ns."""

    step: int
    step_ns: int
    times_median: float
    part: StepPart | None
    part_ns: int | None
    happened: tuple[str, ...]


def slowest(
    rows: Sequence[StepRow], cpu: ClockTimes | None, events: Sequence[EventRow], most: int = MOST
) -> list[SlowStep]:
    """The slowest steady-state steps of `rows` on the CPU's clock, the slowest first. `cpu` has the
    medians."""
    if cpu is None:
        return []
    limit = SLOW * cpu.step.p50
    slow = {row.step: row for row in rows if not row.flags & EXCLUDED_FLAGS and row.step_ns >= limit}
    worst = sorted(slow.values(), key=lambda row: row.step_ns, reverse=True)[:most]
    return [_slow(row, cpu, events) for row in worst]


def _slow(row: StepRow, cpu: ClockTimes, events: Sequence[EventRow]) -> SlowStep:
    parts = _parts(row, cpu)
    beyond = {part: part_ns - _median(cpu, part) for part, part_ns in parts.items()}
    part = max(beyond, key=lambda name: beyond[name])
    is_clear = beyond[part] >= STANDS_OUT * (row.step_ns - cpu.step.p50)
    happened = tuple(
        event.label
        for event in events
        if row.step - 1 <= event.step <= row.step and event.kind != EventKind.INSPECTION
    )
    ratio = row.step_ns / cpu.step.p50 if cpu.step.p50 else 1.0
    return SlowStep(
        row.step, row.step_ns, ratio, part if is_clear else None, parts[part] if is_clear else None, happened
    )


def _parts(row: StepRow, cpu: ClockTimes) -> dict[StepPart, int]:
    """Return the parts of a step, cut as those of `cpu`."""
    all_reduce_ns = broadcast_ns = 0
    if cpu.spread(StepPart.COMMUNICATION) is not None:
        all_reduce_ns = min(row.all_reduce_wait_ns or 0, row.backward_ns)
        broadcast_ns = min(row.broadcast_wait_ns or 0, row.forward_ns)
    parts = {
        StepPart.DATA_WAIT: row.data_wait_ns,
        StepPart.H2D: row.h2d_ns,
        StepPart.FORWARD: row.forward_ns - broadcast_ns,
        StepPart.BACKWARD: row.backward_ns - all_reduce_ns,
        StepPart.COMMUNICATION: all_reduce_ns + broadcast_ns,
        StepPart.OPTIMIZER: row.optimizer_ns,
    }
    return parts | {StepPart.RESIDUAL: row.step_ns - sum(parts.values())}


def _median(cpu: ClockTimes, part: StepPart) -> float:
    spread = cpu.spread(part)
    return 0.0 if spread is None else spread.p50

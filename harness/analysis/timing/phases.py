"""Step time by phase, on the CPU's clock and on the device's. Pure functions.

Flagged steps (warm-up, transition, profiled, tracked) are left out and counted. On an asynchronous device the
CPU's clock shows *issue time*, the time to launch the work. The device's clock runs from the arrival of a
step's first batch to its last event; its gap to the previous step is a lower bound of idle time, because
kernels within a step may wait too.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.analysis.timing.throughput import samples_per_s
from harness.records.run import EXCLUDED_FLAGS, StepRow

Floats = npt.NDArray[np.float64]

# Smallest ratio of issue time to device time of a launch-bound step. It is below 1 because the last kernel
# runs after its launch, so device time slightly exceeds issue time even when launches are the bottleneck.
ISSUE_TAIL = 0.9
# Smallest ratio of the device's gap to the CPU time without launches in a launch-bound step. A gap shows that
# the queue was empty. With a full queue, launches block the CPU, and issue time equals device time for
# another reason.
QUEUE_EMPTY = 0.5


class StepPart(StrEnum):
    """Parts of a step's time. They sum to the step; on the device's clock to step and gap."""

    GAP = "gap"
    DATA_WAIT = "data_wait"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    # Of a rank of several, where it is measured: what neither pass hides, with the wait for other ranks.
    COMMUNICATION = "communication"
    OPTIMIZER = "optimizer"
    RESIDUAL = "residual"


# The words for the parts that are named otherwise than their value.
_LABELS: Mapping[str, str] = {
    StepPart.DATA_WAIT: "data wait",
    StepPart.H2D: "copy",
    StepPart.RESIDUAL: "rest",
}


def part_label(name: str) -> str:
    """Return the words for a part of a step, by the value of a `StepPart` or a `Phase`; other names, such as
    the "other" of a profile, are their own."""
    return _LABELS.get(name, name)


class Spread(NamedTuple):
    """Distribution of a time, in ns. Percentiles are interpolated."""

    p50: float
    p95: float
    p99: float
    mean: float


class StepPartTime(NamedTuple):
    """One part of the steps, with its share of their total time."""

    part: StepPart
    spread: Spread
    share: float


class ClockTimes(NamedTuple):
    """Step times on one clock."""

    steps: int
    step: Spread
    parts: tuple[StepPartTime, ...]

    def share(self, part: StepPart) -> float:
        """A part's share of the total time, 0 where it is not timed."""
        return next((entry.share for entry in self.parts if entry.part is part), 0.0)

    def spread(self, part: StepPart) -> Spread | None:
        """The distribution of a part, None where it is not timed."""
        return next((entry.spread for entry in self.parts if entry.part is part), None)


class Launch(NamedTuple):
    """Issue time against device time; medians in ns."""

    bound_steps: int
    steps: int
    issue_ns: float
    device_ns: float

    @property
    def share(self) -> float:
        """The share of steps that were launch-bound."""
        return self.bound_steps / self.steps


class StepCost(NamedTuple):
    """Operations per sample under one version of the settings. `model_flops` count every operation once, as
    MFU does (Chowdhery et al., 2022); `executed_flops` also recomputation by checkpointing."""

    model_flops: float
    executed_flops: float
    peak_flops_per_s: float | None


class Timing(NamedTuple):
    """Timing of a range of steps. Values that were not measured are None."""

    first: int | None
    last: int | None
    # Steady-state steps that were read.
    examined: int
    # Flagged steps that were read and left out.
    left_out: int
    cpu: ClockTimes | None
    device: ClockTimes | None
    launch: Launch | None
    samples_per_s: float | None
    tokens_per_s: float | None
    model_flops_per_s: float | None
    executed_flops_per_s: float | None
    mfu: float | None
    # Wall time outside of any step (evaluation, pauses and changes), and all of it, between the ends of
    # neighboring steps that were both read. None without any.
    between_steps_ns: float | None
    wall_ns: float | None
    # Steady-state steps with phases that sum to more than the step: an unreliable clock.
    unsound_steps: int
    # The phases that a script measures by itself, within or between the others: mean nanoseconds per step.
    own_phases_ns: Mapping[str, float] = MappingProxyType({})

    @property
    def best(self) -> ClockTimes | None:
        """The device's clock where there is one, else the CPU's."""
        return self.device or self.cpu


def analyze(rows: Sequence[StepRow], costs: Mapping[int, StepCost] | None = None) -> Timing:
    """Analyze the time of `rows`, in order. `costs` are by version of the settings; without all of them there
    are no FLOP/s."""
    steady = [row for row in rows if not row.flags & EXCLUDED_FLAGS]
    first, last = (rows[0].step, rows[-1].step) if rows else (None, None)
    wall_ns, between_steps_ns = _chain(rows)
    cpu, unsound = _cpu(steady)
    elapsed_s = sum(row.step_ns for row in steady) / 1e9
    tokens = [row.tokens for row in steady if row.tokens is not None]
    model_flops_per_s, executed_flops_per_s, mfu = (
        _flops(steady, costs or {}) if elapsed_s else (None, None, None)
    )
    return Timing(
        first=first,
        last=last,
        examined=len(steady),
        left_out=len(rows) - len(steady),
        cpu=cpu,
        device=_device(steady),
        launch=_launch(steady),
        samples_per_s=samples_per_s(steady),
        tokens_per_s=sum(tokens) / elapsed_s if elapsed_s and len(tokens) == len(steady) else None,
        model_flops_per_s=model_flops_per_s,
        executed_flops_per_s=executed_flops_per_s,
        mfu=mfu,
        between_steps_ns=between_steps_ns,
        wall_ns=wall_ns,
        unsound_steps=unsound,
    )


def _chain(rows: Sequence[StepRow]) -> tuple[float | None, float | None]:
    """Wall time from the end of one step to that of the next one, where both were read, and its part outside
    of any step."""
    pairs = [(before, row) for before, row in pairwise(rows) if row.step == before.step + 1]
    if not pairs:
        return None, None
    wall_ns = sum(row.t_ns - before.t_ns for before, row in pairs)
    return wall_ns, wall_ns - sum(row.step_ns for _, row in pairs)


def _table(rows: Sequence[StepRow], *columns: str) -> list[Floats]:
    """Columns as arrays; NaN is "not measured"."""
    indices = [StepRow._fields.index(column) for column in columns]
    return [np.array([row[index] for row in rows], dtype=np.float64) for index in indices]


def _spread(values: Floats) -> Spread:
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return Spread(float(p50), float(p95), float(p99), float(values.mean()))


def _clock(whole: Floats, step: Floats, parts: Mapping[StepPart, Floats]) -> ClockTimes:
    """`parts` sum to `whole`; `step` is the step on this clock."""
    total = float(whole.sum()) or 1.0
    times = [
        StepPartTime(part, _spread(values), float(values.sum()) / total) for part, values in parts.items()
    ]
    return ClockTimes(len(step), _spread(step), tuple(times))


def _cpu(rows: Sequence[StepRow]) -> tuple[ClockTimes | None, int]:
    if not rows:
        return None, 0
    step, *phases = _table(
        rows, "step_ns", "data_wait_ns", "h2d_ns", "forward_ns", "backward_ns", "optimizer_ns"
    )
    wait, copy, forward, backward, optimizer = phases
    parts = {StepPart.DATA_WAIT: wait, StepPart.H2D: copy}
    all_reduce, broadcast = _table(rows, "all_reduce_wait_ns", "broadcast_wait_ns")
    if np.isnan(all_reduce + broadcast).any():
        parts |= {StepPart.FORWARD: forward, StepPart.BACKWARD: backward}
    else:
        all_reduce, broadcast = np.minimum(all_reduce, backward), np.minimum(broadcast, forward)
        parts |= {StepPart.FORWARD: forward - broadcast, StepPart.BACKWARD: backward - all_reduce}
        parts[StepPart.COMMUNICATION] = all_reduce + broadcast
    parts[StepPart.OPTIMIZER] = optimizer
    # What nothing measured is 0 in the log: the data wait without a loader, a script's copies on the CPU.
    parts = {part: ns for part, ns in parts.items() if ns.any() or part is StepPart.COMMUNICATION}
    residual = step - sum(phases)
    return _clock(step, step, {**parts, StepPart.RESIDUAL: residual}), int((residual < 0).sum())


def _device(rows: Sequence[StepRow]) -> ClockTimes | None:
    timed = [row for row in rows if row.device_step_ns is not None and row.device_gap_ns is not None]
    if not timed:
        return None
    step, gap, *phases = _table(
        timed,
        "device_step_ns",
        "device_gap_ns",
        "device_h2d_ns",
        "device_forward_ns",
        "device_backward_ns",
        "device_optimizer_ns",
    )
    parts = {StepPart.GAP: gap}
    residual = step.copy()
    for part, values in zip(
        (StepPart.H2D, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER), phases, strict=True
    ):
        if not np.isnan(values).all():
            parts[part] = np.nan_to_num(values)
            residual -= parts[part]
    return _clock(step + gap, step, {**parts, StepPart.RESIDUAL: residual})


def _launch(rows: Sequence[StepRow]) -> Launch | None:
    timed = [row for row in rows if row.device_step_ns is not None and row.device_gap_ns is not None]
    if not timed:
        return None
    step, device, gap, *phases = _table(
        timed,
        "step_ns",
        "device_step_ns",
        "device_gap_ns",
        "h2d_ns",
        "forward_ns",
        "backward_ns",
        "optimizer_ns",
    )
    issue = sum(phases, np.zeros(len(timed)))
    bound = (issue >= ISSUE_TAIL * device) & (gap >= QUEUE_EMPTY * (step - issue))
    return Launch(int(bound.sum()), len(timed), float(np.median(issue)), float(np.median(device)))


def _flops(
    rows: Sequence[StepRow], costs: Mapping[int, StepCost]
) -> tuple[float | None, float | None, float | None]:
    """FLOP/s of the model, FLOP/s executed, and the model's share of the peaks (MFU)."""
    rated = [(row, costs[row.settings_version]) for row in rows if row.settings_version in costs]
    if not rows or len(rated) < len(rows):
        return None, None, None
    elapsed_s = sum(row.step_ns for row in rows) / 1e9
    model = sum(row.samples * cost.model_flops for row, cost in rated)
    executed = sum(row.samples * cost.executed_flops for row, cost in rated)
    possible = [
        row.step_ns / 1e9 * cost.peak_flops_per_s for row, cost in rated if cost.peak_flops_per_s is not None
    ]
    mfu = model / sum(possible) if len(possible) == len(rows) else None
    return model / elapsed_s, executed / elapsed_s, mfu

"""Where a step's time goes: by phase, on the CPU's clock and on the device's own. Pure.

Flagged steps (warm-up, transition, profiled) are left out and counted. On a device that works asynchronously
the CPU's clock shows *issue time*: how long it took to ask for the work. The device's clock runs from the
arrival of a step's first batch to its last mark; its gap to the step before is a lower bound of its idle
time, because kernels of one step may also wait for one another.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.records import StepFlag, StepRow

Floats = npt.NDArray[np.float64]

LEFT_OUT = int(StepFlag.WARM_UP | StepFlag.TRANSITION | StepFlag.PROFILED)
# A step counts as launch-bound from this ratio of issue time to device time on: the device's last kernel runs
# after it was issued, so that in a step bound by issuing the device's span is a little the longer one.
ISSUE_TAIL = 0.9
# … and when the device's gap is at least this share of the time in which the CPU issued nothing. A device
# with work in its queue does not notice that time; but with a full queue the CPU is held up while issuing,
# and issue time then equals device time for another reason.
QUEUE_EMPTY = 0.5


class Part(StrEnum):
    """What a step's time is cut into. They sum to the step; on the device's clock to step and gap."""

    GAP = "gap"
    DATA_WAIT = "data_wait"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    RESIDUAL = "residual"


class Spread(NamedTuple):
    """How a time is distributed, in nanoseconds. Percentiles lie between neighbouring values."""

    p50: float
    p95: float
    p99: float
    mean: float


class PartTime(NamedTuple):
    """One part of the steps; `share` is its share of all their time."""

    part: Part
    spread: Spread
    share: float


class ClockTimes(NamedTuple):
    """The steps on one clock."""

    steps: int
    step: Spread
    parts: tuple[PartTime, ...]

    def share(self, part: Part) -> float:
        """A part's share of all time, 0 where it is not timed."""
        return next((found.share for found in self.parts if found.part is part), 0.0)

    def spread(self, part: Part) -> Spread | None:
        """How a part is distributed, None where it is not timed."""
        return next((found.spread for found in self.parts if found.part is part), None)


class Launch(NamedTuple):
    """Whether the CPU could issue work as fast as the device did it; medians in nanoseconds."""

    bound_steps: int
    steps: int
    issue_ns: float
    device_ns: float

    @property
    def share(self) -> float:
        """The share of steps that were launch-bound."""
        return self.bound_steps / self.steps


class StepCost(NamedTuple):
    """What a sample costs under one version of the settings. `model_flops` count every operation once, as
    MFU does (Chowdhery et al., 2022); `executed_flops` also what checkpointing computes again."""

    model_flops: float
    executed_flops: float
    peak_flops_per_s: float | None


class Timing(NamedTuple):
    """The time of a range of steps. What was not measured is None."""

    first: int | None
    last: int | None
    looked_at: int
    """Settled steps that were read."""
    left_out: int
    """Flagged steps that were read and left out."""
    cpu: ClockTimes | None
    device: ClockTimes | None
    launch: Launch | None
    samples_per_s: float | None
    tokens_per_s: float | None
    model_flops_per_s: float | None
    executed_flops_per_s: float | None
    mfu: float | None
    untold_ns: float | None
    """Wall time from the first step's end to the last's that no step covers: pauses and changes. None unless
    every step in between was read."""
    wall_ns: float | None
    unsound_steps: int
    """Settled steps whose phases add up to more than the step: a clock that cannot be trusted."""

    @property
    def best(self) -> ClockTimes | None:
        """The device's clock where there is one, else the CPU's."""
        return self.device or self.cpu


def analyse(rows: Sequence[StepRow], costs: Mapping[int, StepCost] | None = None) -> Timing:
    """The time of `rows`, in order. `costs` belong to versions of the settings; where one is missing
    there are no FLOP/s."""
    settled = [row for row in rows if not row.flags & LEFT_OUT]
    first, last = (rows[0].step, rows[-1].step) if rows else (None, None)
    wall_ns, untold_ns = _chain(rows)
    cpu, unsound = _cpu(settled)
    elapsed_s = sum(row.step_ns for row in settled) / 1e9
    tokens = [row.tokens for row in settled if row.tokens is not None]
    rates = _flops(settled, costs or {}) if elapsed_s else (None, None, None)
    return Timing(
        first,
        last,
        len(settled),
        len(rows) - len(settled),
        cpu,
        _device(settled),
        _launch(settled),
        sum(row.samples for row in settled) / elapsed_s if elapsed_s else None,
        sum(tokens) / elapsed_s if elapsed_s and len(tokens) == len(settled) else None,
        *rates,
        untold_ns,
        wall_ns,
        unsound,
    )


def _chain(rows: Sequence[StepRow]) -> tuple[float | None, float | None]:
    """Wall time from the first step's end to the last's, and what of it no step covers."""
    if len(rows) < 2 or rows[-1].step - rows[0].step != len(rows) - 1:
        return None, None
    wall_ns = rows[-1].t_ns - rows[0].t_ns
    return wall_ns, wall_ns - sum(row.step_ns for row in rows[1:])


def _table(rows: Sequence[StepRow], *columns: str) -> list[Floats]:
    """Columns as arrays; NaN is "not measured"."""
    indices = [StepRow._fields.index(column) for column in columns]
    return [np.array([row[index] for row in rows], dtype=np.float64) for index in indices]


def _spread(values: Floats) -> Spread:
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return Spread(float(p50), float(p95), float(p99), float(values.mean()))


def _clock(whole: Floats, step: Floats, parts: Mapping[Part, Floats]) -> ClockTimes:
    """`parts` sum to `whole`; `step` is what is called the step on this clock."""
    total = float(whole.sum()) or 1.0
    times = [PartTime(part, _spread(values), float(values.sum()) / total) for part, values in parts.items()]
    return ClockTimes(len(step), _spread(step), tuple(times))


def _cpu(rows: Sequence[StepRow]) -> tuple[ClockTimes | None, int]:
    if not rows:
        return None, 0
    step, *phases = _table(
        rows, "step_ns", "data_wait_ns", "h2d_ns", "forward_ns", "backward_ns", "optimizer_ns"
    )
    parts = dict(zip(tuple(Part)[1:6], phases, strict=True))
    residual = step - sum(phases)
    return _clock(step, step, {**parts, Part.RESIDUAL: residual}), int((residual < 0).sum())


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
    parts = {Part.GAP: gap}
    residual = step.copy()
    for part, values in zip((Part.H2D, Part.FORWARD, Part.BACKWARD, Part.OPTIMIZER), phases, strict=True):
        if not np.isnan(values).all():
            parts[part] = np.nan_to_num(values)
            residual -= parts[part]
    return _clock(step + gap, step, {**parts, Part.RESIDUAL: residual})


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
    """Operations a second: the model's, those executed; and the model's as a share of the peaks."""
    known = [(row, costs[row.settings_version]) for row in rows if row.settings_version in costs]
    if not rows or len(known) < len(rows):
        return None, None, None
    elapsed_s = sum(row.step_ns for row in rows) / 1e9
    model = sum(row.samples * cost.model_flops for row, cost in known)
    executed = sum(row.samples * cost.executed_flops for row, cost in known)
    possible = [
        row.step_ns / 1e9 * cost.peak_flops_per_s for row, cost in known if cost.peak_flops_per_s is not None
    ]
    mfu = model / sum(possible) if len(possible) == len(rows) else None
    return model / elapsed_s, executed / elapsed_s, mfu

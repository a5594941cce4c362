"""The steps of several ranks side by side: which of them the others wait for, and in which phase.

Ranks that average gradients end each backward pass together, so that all of their steps take equally long.
What differs is how: a rank that is late with its own work waits little at the end of the backward pass, or
where buffers are broadcast at the begin of the forward pass, and the others wait there for it. So a rank's
*own time* is that of its step without these waits (`StepRow.all_reduce_wait_ns`, `broadcast_wait_ns`), and a
straggler's is longer than the others' by about what its waits are shorter. The shortest wait for the
all-reduce of all ranks in a step is nobody's lateness: it is the all-reduce itself.

Where a rank lacks the waits (FSDP, GPUs, earlier logs), the whole backward pass stands for them. A rank whose
backward pass itself computes longer cannot be told then: all ranks' backward passes are equally long. Where
device times exist, they are compared instead of the CPU's.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness import words
from harness.analysis.timing.phases import StepPart, part_label
from harness.records.run import EXCLUDED_FLAGS, StepRow

Floats = npt.NDArray[np.float64]

# The newest steps that all ranks have in common are compared.
WINDOW = 100
LEAST_STEPS = 30
# A straggler is later than the others by this share of a step at least: than the next one in the median, and
# than the median of the others in two of three of the newest steps.
LEAST_SHARE = 0.08
NEWEST = 50
_EARLY_PERCENTILE = 33
# Its wait is shorter than the others' by this share of what it is late: that is how long they wait for it.
# Less of it where the wait itself is measured, because a rank that computes while the others wait is faster.
_WAITED_SHARE = 0.5
_MEASURED_WAIT_SHARE = 0.25
# The block of steps in which the begin of a straggler is sought.
_BLOCK = 10


class RankTimes(NamedTuple):
    """Medians of one rank, in ns: of times over the newest `NEWEST` of the compared steps."""

    rank: int
    step_ns: float
    own_ns: float
    # By which its wait is longer than the shortest of all ranks: what it waits for others, at least.
    waiting_ns: float
    # The highest of the compared steps; None: not measured.
    peak_allocated_bytes: int | None
    # Between the ends of its backward passes and those of rank 0 on their runs' clocks, and the interquartile
    # range of that. All backward passes end together, so this aligns the clocks.
    clock_offset_ns: float
    clock_spread_ns: float


class Straggler(NamedTuple):
    """The rank that the others wait for."""

    rank: int
    # The part of the step in which it is late.
    part: StepPart
    late_ns: float
    # Of the time of a step, which all ranks lose.
    share: float
    # The first step of which this holds, among those compared.
    since_step: int


class RankComparison(NamedTuple):
    """The steps `first_step` to `last_step` of all ranks."""

    first_step: int
    last_step: int
    steps: int
    ranks: list[RankTimes]
    # The median time between the first and the last rank to begin waiting.
    skew_ns: float
    # The median of the shortest wait of all ranks, which is the all-reduce itself, as far as it does not
    # overlap the backward pass. None: not measured.
    all_reduce_ns: float | None
    straggler: Straggler | None
    step_numbers: list[int]
    # By rank and step: by which its own time is longer than the median rank's, in ns.
    late_ns: list[list[float]]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        late = self.straggler
        if late is None:
            return f"No rank keeps the others waiting (steps {_span(self)})."
        since = (
            f"at least since step {words.count(late.since_step)}"
            if late.since_step <= self.first_step + _BLOCK
            else f"since about step {words.count(late.since_step)}"
        )
        return (
            f"Rank {late.rank} is late in {part_label(late.part)} by {words.duration(late.late_ns)} of each "
            f"step, {since}: {100 * late.share:.0f} % of every rank's time."
        )


def compare_ranks(rows: Mapping[int, Sequence[StepRow]]) -> RankComparison | None:
    """Compare the newest steps that all ranks have; None for fewer than two ranks or `LEAST_STEPS` steps."""
    ranks, common = _common_steps(rows)
    if len(ranks) < 2 or len(common) < LEAST_STEPS:
        return None
    wait, parts = _part_times(ranks)
    own, numbers = np.sum(list(parts.values()), axis=0), sorted(rows)
    return RankComparison(
        common[0],
        common[-1],
        len(common),
        _rank_times(numbers, ranks, own, wait),
        float(np.median(own.max(axis=0) - own.min(axis=0))),
        _all_reduce_ns(ranks) if StepPart.BACKWARD in parts else None,
        _find_straggler(numbers, common, own, wait, parts),
        common,
        (own - np.median(own, axis=0)).tolist(),
    )


def _part_times(ranks: Sequence[Sequence[StepRow]]) -> tuple[Floats, dict[StepPart, Floats]]:
    """Return the times in which ranks wait for each other, and those of their own work by its part, each with
    the ranks in rows and the steps in columns. The backward pass is own work where the waits are measured."""
    rows = [row for rank in ranks for row in rank]
    on_device = all(row.device_step_ns is not None for row in rows)
    parts: dict[StepPart, Floats] = {
        part: np.array([[_part_ns(row, part, on_device) for row in rank] for rank in ranks])
        for part in StepPart
        if part is not StepPart.COMMUNICATION
    }
    has_waits = all(None not in (row.all_reduce_wait_ns, row.broadcast_wait_ns) for row in rows)
    if on_device or not has_waits:
        return parts.pop(StepPart.BACKWARD), parts
    all_reduce = np.array([[_all_reduce(row) for row in rank] for rank in ranks])
    broadcast = np.array([[_broadcast(row) for row in rank] for rank in ranks])
    parts[StepPart.BACKWARD] -= all_reduce
    parts[StepPart.FORWARD] -= broadcast
    return all_reduce + broadcast, parts


def _all_reduce(row: StepRow) -> float:
    """Return the wait for the all-reduce, no longer than the backward pass, of which it is the end."""
    return float(min(row.all_reduce_wait_ns or 0, row.backward_ns))


def _broadcast(row: StepRow) -> float:
    """Return the wait for the broadcast of buffers, no longer than the forward pass."""
    return float(min(row.broadcast_wait_ns or 0, row.forward_ns))


def _all_reduce_ns(ranks: Sequence[Sequence[StepRow]]) -> float:
    """Return the median of the shortest wait for the all-reduce of all ranks."""
    waits = np.array([[_all_reduce(row) for row in rank[-NEWEST:]] for rank in ranks])
    return float(np.median(waits.min(axis=0)))


def _rank_times(
    numbers: Sequence[int], ranks: Sequence[Sequence[StepRow]], own: Floats, wait: Floats
) -> list[RankTimes]:
    step_ns, waiting = own + wait, wait - wait.min(axis=0)
    ends = np.array(
        [[row.t_ns - _after_backward_ns(row) for row in rank] for rank in ranks], dtype=np.float64
    )
    offsets = ends - ends[0]
    return [
        RankTimes(
            number,
            float(np.median(step_ns[at, -NEWEST:])),
            float(np.median(own[at, -NEWEST:])),
            float(np.median(waiting[at, -NEWEST:])),
            max(
                (row.peak_allocated_bytes for row in ranks[at] if row.peak_allocated_bytes is not None),
                default=None,
            ),
            float(np.median(offsets[at])),
            float(np.subtract(*np.percentile(offsets[at], [75, 25]))),
        )
        for at, number in enumerate(numbers)
    ]


def _common_steps(rows: Mapping[int, Sequence[StepRow]]) -> tuple[list[list[StepRow]], list[int]]:
    """Return the rows of the newest steps that no rank lacks or excludes, by rank, and their numbers."""
    by_step = [
        {row.step: row for row in rows[rank] if not row.flags & EXCLUDED_FLAGS} for rank in sorted(rows)
    ]
    common = sorted(set.intersection(*map(set, by_step)))[-WINDOW:] if by_step else []
    return [[steps[step] for step in common] for steps in by_step], common


def _find_straggler(
    numbers: Sequence[int],
    steps: Sequence[int],
    own: Floats,
    wait: Floats,
    parts: Mapping[StepPart, Floats],
) -> Straggler | None:
    """Find it by the work outside of the backward pass first: on few cores, backward passes differ by what
    the other ranks do meanwhile. `parts` sum to `own`."""
    step_ns = float(np.median((own + wait)[:, -NEWEST:]))
    backward = parts.get(StepPart.BACKWARD)
    if backward is None:
        late = _latest(own, wait, step_ns, _WAITED_SHARE)
    else:
        late = _latest(own - backward, wait, step_ns, _MEASURED_WAIT_SHARE)
        late = late or _latest(own, wait, step_ns, _MEASURED_WAIT_SHARE)
    if late is None:
        return None
    by_part = {part: np.median(_lateness(values, late.at)[-NEWEST:]) for part, values in parts.items()}
    part = max(by_part, key=by_part.__getitem__)
    return Straggler(
        numbers[late.at],
        StepPart.DATA_WAIT if part is StepPart.GAP else part,
        late.saved_ns,
        late.saved_ns / step_ns,
        steps[_begin(late.late_ns, LEAST_SHARE * step_ns)],
    )


class _Latest(NamedTuple):
    """The rank with the longest own time, by its index: how much earlier a step would end without it, and by
    how much it is late in each step."""

    at: int
    saved_ns: float
    late_ns: Floats


def _latest(own: Floats, wait: Floats, step_ns: float, waited_share: float) -> _Latest | None:
    """Return the rank that is later than the others by enough of a step, in enough of the newest steps, and
    that they wait for: by `waited_share` of what it is late, at least."""
    newest = np.s_[:, -NEWEST:]
    typical = np.median(own[newest], axis=1)
    at = int(np.argmax(typical))
    # Without this rank, a step would end so much earlier: the next one is waited for then.
    saved_ns = float(typical[at] - _others(typical, at).max())
    late_ns = _lateness(own, at)
    least_ns = LEAST_SHARE * step_ns
    if saved_ns < least_ns or np.percentile(late_ns[-NEWEST:], _EARLY_PERCENTILE) < least_ns:
        return None
    wait_ns = np.median(wait[newest], axis=1)
    if _others(wait_ns, at).min() - wait_ns[at] < waited_share * saved_ns:
        return None
    return _Latest(at, saved_ns, late_ns)


def _lateness(values: Floats, at: int) -> Floats:
    """Return by how much a rank is later than the median of the others, by step."""
    late: Floats = values[at] - np.median(_others(values, at), axis=0)
    return late


def _begin(late_ns: Floats, least_ns: float) -> int:
    """Return the index of the first of the steps, up to the newest, in whose blocks the rank is late."""
    begin = len(late_ns) - _BLOCK
    while begin > 0 and np.median(late_ns[max(0, begin - _BLOCK) : begin]) >= least_ns:
        begin -= _BLOCK
    return max(0, begin)


def _others(values: Floats, at: int) -> Floats:
    """Return the values of all ranks but one."""
    return np.delete(values, at, axis=0)


def _part_ns(row: StepRow, part: StepPart, on_device: bool) -> float:
    if part is StepPart.GAP:
        return float(row.device_gap_ns or 0) if on_device else 0.0
    if part is StepPart.RESIDUAL:
        whole = row.device_step_ns if on_device else row.step_ns
        named = (StepPart.H2D, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER)
        known = named if on_device else (StepPart.DATA_WAIT, *named)
        return float(whole or 0) - sum(_part_ns(row, one, on_device) for one in known)
    if on_device and part is StepPart.DATA_WAIT:
        return 0.0  # Its part on the device is the gap.
    return float(getattr(row, f"device_{part.value}_ns" if on_device else f"{part.value}_ns") or 0)


def _after_backward_ns(row: StepRow) -> int:
    """Return the time from the end of the backward pass to the end of the step, on the CPU's clock; the
    residual counts to its end."""
    before_ns = row.data_wait_ns + row.h2d_ns + row.forward_ns + row.backward_ns
    return row.step_ns - before_ns


def _span(comparison: RankComparison) -> str:
    return f"{words.count(comparison.first_step)} to {words.count(comparison.last_step)}"

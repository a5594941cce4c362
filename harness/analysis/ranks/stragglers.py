"""The steps of several ranks side by side: which of them the others wait for, and in which phase.

Ranks that average gradients end each backward pass together, so that all of their steps take equally long.
What differs is how: a rank that is late with its own work waits little at the end of the backward pass, or
where buffers are broadcast at the begin of the forward pass, and the others wait there for it. So a rank's
*own time* is that of its step without these waits (`StepRow.all_reduce_wait_ns`, `broadcast_wait_ns`), and a
straggler's is longer than the others' by about what its waits are shorter. The shortest wait for the
all-reduce of all ranks in a step is the all-reduce itself, and not the lateness of a rank.

Where a rank lacks the waits (FSDP, GPUs, earlier logs), the whole backward pass stands for them. A rank whose
backward pass itself computes longer cannot be found then: all ranks' backward passes are equally long. Where
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
# Medians are those of the newest steps.
NEWEST = 50
# A straggler is later than the next rank by this share of a step at least, in the median.
LEAST_SHARE = 0.08
_EARLY_PERCENTILE = 33
# A begin within so many of the first compared steps may as well lie before them.
_UNSURE_STEPS = 10


class _Demand(NamedTuple):
    """The demands on a straggler."""

    # They hold over so many of the newest steps; with fewer than `least_steps`, none is named.
    steps: int
    least_steps: int
    # It is later by these shares of a step at least: than the next one in the median, and than the median of
    # the others in two of three steps.
    median_share: float
    early_share: float
    # Its wait is shorter than the others' by this share of what it is late: so long they wait for it.
    waited_share: float


# The whole backward pass stands for the wait.
_UNMEASURED = _Demand(NEWEST, LEAST_STEPS, LEAST_SHARE, LEAST_SHARE, waited_share=0.5)
# The wait is measured. It is shorter than the lateness, because a rank that computes while the others wait is
# faster: on two cores by up to a half.
_OUTSIDE_BACKWARD = _UNMEASURED._replace(waited_share=0.25)
# Backward passes vary more, to and fro: on two cores beside other work, those of healthy ranks differed by up
# to 14 % of a step in the median of 50 steps. In two of three of 100 steps, one was later by 4 % at most in
# 70 healthy runs, and by 7 % at least in 47 of 51 runs in which it was late by 20 %.
_IN_BACKWARD = _Demand(WINDOW, 80, 0.05, 0.05, waited_share=0.25)


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
            if late.since_step <= self.first_step + _UNSURE_STEPS
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
        first_step=common[0],
        last_step=common[-1],
        steps=len(common),
        ranks=_rank_times(numbers, ranks, own, wait),
        skew_ns=float(np.median(own.max(axis=0) - own.min(axis=0))),
        all_reduce_ns=_all_reduce_ns(ranks) if StepPart.BACKWARD in parts else None,
        straggler=_find_straggler(numbers, common, own, wait, parts),
        step_numbers=common,
        late_ns=(own - np.median(own, axis=0)).tolist(),
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
    by_step = [{row.step: row for row in _comparable(rows[rank])} for rank in sorted(rows)]
    common = sorted(set.intersection(*map(set, by_step)))[-WINDOW:] if by_step else []
    return [[steps[step] for step in common] for steps in by_step], common


def _comparable(rows: Sequence[StepRow]) -> list[StepRow]:
    """Return the rows of the steady state; if most of them have device times, only these: on the CPU's clock
    the phases of such a rank are only issue times."""
    steady = [row for row in rows if not row.flags & EXCLUDED_FLAGS]
    timed = [row for row in steady if row.device_step_ns is not None]
    return timed if 2 * len(timed) > len(steady) else steady


def _find_straggler(
    numbers: Sequence[int],
    steps: Sequence[int],
    own: Floats,
    wait: Floats,
    parts: Mapping[StepPart, Floats],
) -> Straggler | None:
    """Find it by its work outside of the backward pass, or by the backward pass. `parts` sum to `own`."""
    step_ns = float(np.median((own + wait)[:, -NEWEST:]))
    backward = parts.get(StepPart.BACKWARD)
    if backward is None:
        late = _latest(own, wait, step_ns, _UNMEASURED)
    else:
        late = _latest(own - backward, wait, step_ns, _OUTSIDE_BACKWARD)
        late = late or _latest(backward, wait, step_ns, _IN_BACKWARD)
    if late is None:
        return None
    by_part = {part: np.median(_lateness(values, late.at)[-NEWEST:]) for part, values in parts.items()}
    part = max(by_part, key=by_part.__getitem__)
    return Straggler(
        numbers[late.at],
        StepPart.DATA_WAIT if part is StepPart.GAP else part,
        late.saved_ns,
        late.saved_ns / step_ns,
        steps[_begin(late.late_ns, late.saved_ns)],
    )


class _Latest(NamedTuple):
    """The rank that takes longest for some work, by its index: how much earlier a step would end without it,
    and by how much it is late in each step."""

    at: int
    saved_ns: float
    late_ns: Floats


def _latest(work: Floats, wait: Floats, step_ns: float, demand: _Demand) -> _Latest | None:
    """Return the rank that takes longest for `work` if it meets the demands."""
    newest = np.s_[:, -demand.steps :]
    typical = np.median(work[newest], axis=1)
    at = int(np.argmax(typical))
    # Without this rank, a step would end so much earlier: the next one is waited for then.
    saved_ns = float(typical[at] - _others(typical, at).max())
    late_ns = _lateness(work, at)
    early_ns = np.percentile(late_ns[-demand.steps :], _EARLY_PERCENTILE)
    is_late = saved_ns >= demand.median_share * step_ns and early_ns >= demand.early_share * step_ns
    if work.shape[1] < demand.least_steps or not is_late:
        return None
    wait_ns = np.median(wait[newest], axis=1)
    if _others(wait_ns, at).min() - wait_ns[at] < demand.waited_share * saved_ns:
        return None  # The others do not wait for it.
    return _Latest(at, saved_ns, late_ns)


def _lateness(values: Floats, at: int) -> Floats:
    """Return by how much a rank is later than the median of the others, by step."""
    late: Floats = values[at] - np.median(_others(values, at), axis=0)
    return late


def _begin(late_ns: Floats, typical_ns: float) -> int:
    """Return the index of the step since which a rank is late by `typical_ns`: the one from which on the
    lateness beyond half of that has the largest sum."""
    beyond_ns = np.clip(late_ns, 0, typical_ns) - typical_ns / 2
    return int(np.argmax(np.cumsum(beyond_ns[::-1])[::-1]))


def _others(values: Floats, at: int) -> Floats:
    """Return the values of all ranks but one."""
    return np.delete(values, at, axis=0)


def _part_ns(row: StepRow, part: StepPart, on_device: bool) -> float:
    if part is StepPart.GAP:
        return float(row.device_gap_ns or 0) if on_device else 0.0
    if part is StepPart.RESIDUAL:
        whole = row.device_step_ns if on_device else row.step_ns
        named = (StepPart.H2D, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER)
        phases = named if on_device else (StepPart.DATA_WAIT, *named)
        return float(whole or 0) - sum(_part_ns(row, one, on_device) for one in phases)
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

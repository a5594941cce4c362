"""Estimates for other settings, from this run's own steps or from a prediction."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.oom.budget import released_bytes
from harness.analysis.oom.report import (
    BatchPeak,
    Counterfactual,
    MemoryAtFailure,
    OomFacts,
    OomPhase,
    OomVerdict,
    PredictedChange,
)
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind

# Lines are extrapolated up to this multiple of the run's largest batch.
_FARTHEST = 2.0
# As a share of the peak: what depends on the batch. With less, half of it would have changed next to nothing.
_LEAST_BATCH_SHARE = 0.02
# As a share of what depends on the batch: with such a growth of the memory between two steps, as of a tensor
# that each step replaces by a larger one, the peaks grow with the number of steps too.
_LEAST_GROWTH_SHARE = 0.1
_LEAST_STEPS = 4
# The phases whose memory the peaks of steps include: other requests may have any size.
_IN_MODEL = frozenset({OomPhase.COPY, OomPhase.FORWARD, OomPhase.BACKWARD, OomPhase.OPTIMIZER})
# The causes that do not depend on the batch.
_WHATEVER_THE_BATCH = frozenset(
    {
        OomVerdict.LEAK,
        OomVerdict.KEPT_GRAPHS,
        OomVerdict.SHARED_MEMORY,
        OomVerdict.HOST,
        OomVerdict.REFUSED,
    }
)
# The causes for which the memory of a whole step was too large.
_BY_THE_STEP = frozenset(
    {OomVerdict.CAP, OomVerdict.PROCESS_LIMIT, OomVerdict.TOO_BIG, OomVerdict.FRAGMENTATION}
)
_OF_MODEL = frozenset(
    {MemoryCategory.WEIGHTS.value, MemoryCategory.GRADIENTS.value, MemoryCategory.OPTIMIZER.value}
)
# The highest point of a short step may be between two readings.
_WITH_SAMPLED_PEAKS = frozenset({DeviceKind.CPU, DeviceKind.MPS})
# What `words.SEPARATE_BLOCKS` maps individually.
_SEPARATE_BYTES = 128 << 10


class PeakLine(NamedTuple):
    """peak = `fixed_bytes` + `sample_bytes` · batch. `basis` names the data of the fit, in words."""

    fixed_bytes: float
    sample_bytes: float
    basis: str
    largest_measured: int

    def peak_bytes(self, batch_size: int) -> int:
        """Return the peak on the line."""
        return round(self.fixed_bytes + self.sample_bytes * batch_size)

    def largest_batch(self, limit_bytes: int) -> int:
        """Return the largest batch with a peak within the limit, at most where the extrapolation ends."""
        fitting = int((limit_bytes - self.fixed_bytes) // self.sample_bytes)
        return min(fitting, int(self.largest_measured * _FARTHEST))


def fit(peaks: Sequence[BatchPeak], static_bytes: int | None) -> PeakLine | None:
    """Fit a line to the peaks of a run; None if there is too little data.

    With two or more batch sizes it is the least-squares line; with one, the line from the baseline between
    steps (`static_bytes`) to that peak. The true curve is the maximum of several lines, one per phase of a
    step, so beyond the largest batch the line is a lower bound.
    """
    if len({peak.batch_size for peak in peaks}) >= 2:
        sizes, bytes_ = [p.batch_size for p in peaks], [p.peak_bytes for p in peaks]
        slope, fixed = statistics.linear_regression(sizes, bytes_)
        names = ", ".join(f"{p.batch_size:,} ({words.size(p.peak_bytes)})" for p in peaks)
        basis = f"a line through this run's peaks at batches {names}: {words.size(slope)} per sample"
    elif len(peaks) == 1 and static_bytes is not None:
        (peak,) = peaks
        slope, fixed = (peak.peak_bytes - static_bytes) / peak.batch_size, float(static_bytes)
        basis = (
            f"this run's peak of {words.size(peak.peak_bytes)} at batch {peak.batch_size:,}, of which "
            f"{words.size(static_bytes)} are the baseline between two steps: "
            f"{words.size(slope)} per sample"
        )
    else:
        return None
    if slope <= 0:
        return None
    return PeakLine(fixed, slope, basis, max(p.batch_size for p in peaks))


def counterfactuals(
    facts: OomFacts, verdict: OomVerdict, predicted: Sequence[PredictedChange]
) -> tuple[Counterfactual, ...]:
    """Return the statements on other settings, each with its basis; none without evidence."""
    statements = [
        *_measured(facts),
        *_fitted(facts, verdict),
        *_untried(facts, verdict),
        *_cap(facts, verdict),
    ]
    statements += [
        Counterfactual(
            f"{change.label} would save {words.size(change.saved_bytes)}: a peak of "
            f"{words.size(change.peak_bytes)}.",
            "predicted, not measured",
            change.peak_bytes,
        )
        for change in predicted
        if change.saved_bytes > 0
    ]
    if verdict is OomVerdict.FRAGMENTATION and facts.device is DeviceKind.CUDA:
        statements.append(_expandable(facts.memory))
    if verdict is OomVerdict.FRAGMENTATION and facts.device is DeviceKind.CPU:
        statements += _separate_blocks(facts)
    return tuple(statements)


def _measured(facts: OomFacts) -> list[Counterfactual]:
    """Return the peak of the largest smaller batch that this run has trained with: a measurement."""
    smaller = [p for p in facts.peaks if facts.batch_size is not None and p.batch_size < facts.batch_size]
    if not smaller:
        return []
    best = max(smaller, key=lambda p: p.batch_size)
    text = f"Batch {best.batch_size:,} peaked at {words.size(best.peak_bytes)}."
    basis = f"measured in this run, {words.plural(best.steps, 'step')}"
    return [Counterfactual(text, basis, best.peak_bytes)]


def _fitted(facts: OomFacts, verdict: OomVerdict) -> list[Counterfactual]:
    """Estimate the peaks of other batches; none if the batch did not cause the failure."""
    line, limit = fit(facts.peaks, facts.static_bytes), facts.memory.run_limit_bytes
    on_cpu = facts.device is DeviceKind.CPU
    if (
        line is None
        or facts.batch_size is None
        or facts.request.phase not in _IN_MODEL
        or verdict in _WHATEVER_THE_BATCH
        or (verdict is OomVerdict.FRAGMENTATION and on_cpu)
    ):
        return []
    if (facts.request.least_bytes or 0) + released_bytes(facts) > line.peak_bytes(facts.batch_size):
        return []  # The failed step was unlike those of the line, as with a far longer sample.
    peak, of_batch = line.peak_bytes(facts.batch_size), round(line.sample_bytes * facts.batch_size)
    if of_batch < _LEAST_BATCH_SHARE * peak:
        text = (
            f"A smaller batch would have made next to no difference: of a peak of {words.size(peak)} only "
            f"{words.size(of_batch)} depend on it."
        )
        return [Counterfactual(text, line.basis, None)]
    if (growth := _growth(facts)) is not None and growth.size_bytes >= _LEAST_GROWTH_SHARE * of_batch:
        return [Counterfactual(growth.sentence, "this run's newest steps", None)]
    sizes = [facts.batch_size // 2]
    if limit is not None:
        sizes.append(line.largest_batch(limit))
    measured = {p.batch_size for p in facts.peaks}
    statements = []
    for size in sorted({s for s in sizes if 1 <= s < facts.batch_size and s not in measured}):
        if size > line.largest_measured * _FARTHEST:
            continue
        peak = line.peak_bytes(size)
        or_more = " or more" if facts.device in _WITH_SAMPLED_PEAKS else ""
        text = f"Batch {size:,} would have peaked at about {words.size(peak)}{or_more}."
        if size > line.largest_measured:  # There the line is a lower bound.
            text = f"Batch {size:,} would have peaked at at least {words.size(peak)}."
            if limit is not None and peak <= limit < line.peak_bytes(size + 1):
                text = f"Any batch above {size:,} would have peaked at more than {words.size(limit)}."
        statements.append(Counterfactual(text, line.basis, peak))
    return statements


class _Growth(NamedTuple):
    """The growth of allocated memory between two steps over the newest `steps`, which had the settings in
    effect at the failure."""

    size_bytes: int
    steps: int

    @property
    def sentence(self) -> str:
        return (
            "What other batches would have needed is not known: allocated memory between two steps had grown "
            f"by at least {words.size(self.size_bytes)} in {words.plural(self.steps, 'step')}."
        )


def _growth(facts: OomFacts) -> _Growth | None:
    """Return the growth between the lowest readings of the earlier and the later half of these steps, as
    batches may differ; None with too few."""
    since = 0 if facts.change is None else facts.change.step
    levels = [one.allocated_bytes for one in facts.steps if one.step >= since]
    measured = [level for level in levels if level is not None]
    if len(measured) < _LEAST_STEPS:
        return None
    half = len(measured) // 2
    return _Growth(min(measured[half:]) - min(measured[:half]), len(measured))


def _untried(facts: OomFacts, verdict: OomVerdict) -> list[Counterfactual]:
    """Name a smaller batch to try where nothing is known about any, as in a run's first step."""
    batch = facts.batch_size
    if (
        batch is None
        or batch == 1
        or facts.peaks
        or facts.request.phase
        not in _IN_MODEL - {OomPhase.OPTIMIZER}  # Its state does not depend on the batch.
        or verdict not in _BY_THE_STEP
    ):
        return []
    text = f"Which batch fits is not known; the next to try is half of this one, batch {batch // 2:,}."
    most_bytes, request_bytes = _left_by_model(facts), facts.request.least_bytes
    if most_bytes is not None and request_bytes is not None and request_bytes / 2 > most_bytes:
        text = _far_smaller(batch, request_bytes, most_bytes)
    return [Counterfactual(text, "no step with all of the optimizer's state has a peak", None)]


def _far_smaller(batch: int, request_bytes: int, most_bytes: int) -> str:
    """Return the sentence for a request that alone would not fit into `most_bytes` with half of the batch."""
    fitting, size_bytes = batch, float(request_bytes)
    while fitting and size_bytes > most_bytes:
        fitting //= 2
        size_bytes = request_bytes * fitting / batch
    next_one = f"the next to try is batch {fitting:,}" if fitting else "not even batch 1 fits"
    return (
        "Which batch fits is not known. The request alone is "
        f"{words.figure(request_bytes / most_bytes, 2)} times the {words.size(most_bytes)} that the limit "
        f"leaves beside the model: if it grows with the batch, {next_one}."
    )


def _left_by_model(facts: OomFacts) -> int | None:
    """Return what the limit leaves beside weights, gradients and optimizer state; None if that is not known,
    or nothing."""
    limit_bytes = facts.memory.run_limit_bytes
    if limit_bytes is None:
        return None
    of_model = sum(
        one.held_bytes for one in facts.holders if one.module is None and one.category in _OF_MODEL
    )
    return limit_bytes - of_model if limit_bytes > of_model else None


def _cap(facts: OomFacts, verdict: OomVerdict) -> list[Counterfactual]:
    """Return the cap that would have sufficed. The cap covers reserved memory, free or not. If reserved
    memory plus the request is below the cap, something else used the rest (on the CPU thread stacks, the
    interpreter), and no figure is given."""
    memory, most = facts.memory, facts.request.most_bytes
    base, cap = memory.reserved_bytes, memory.cap_bytes
    if verdict is not OomVerdict.CAP or base is None or most is None or cap is None or base + most <= cap:
        return []
    needed = base + most
    if memory.device_total_bytes is not None and needed > memory.device_total_bytes:
        text = f"No cap would have sufficed: the device has {words.size(memory.device_total_bytes)} in total."
        return [Counterfactual(text, _cap_basis(base, most), None)]
    is_distinct = words.size(needed) != words.size(cap)
    larger = f"A cap above {words.size(needed)}" if is_distinct else "A slightly larger cap"
    text = f"{larger} would have sufficed for this request; later ones may need more."
    return [Counterfactual(text, _cap_basis(base, most), needed)]


def _cap_basis(reserved_bytes: int, requested_bytes: int) -> str:
    return f"{words.size(reserved_bytes)} reserved and {words.size(requested_bytes)} requested"


def _expandable(memory: MemoryAtFailure) -> Counterfactual:
    return Counterfactual(
        f"{words.EXPANDABLE_SEGMENTS} would help: segments then grow in place, and their free blocks can "
        "be merged.",
        f"{words.size(memory.unused_bytes)} were reserved but unallocated",
        None,
    )


def _separate_blocks(facts: OomFacts) -> list[Counterfactual]:
    """Name what keeps blocks as large as the one requested out of the heap, in which they leave holes."""
    if facts.memory.maps_large_blocks or (facts.request.least_bytes or 0) < _SEPARATE_BYTES:
        return []
    text = (
        f"{words.SEPARATE_BLOCKS} in the environment would help: blocks of 128 KiB or more then go back to "
        "the system when they are freed. Steps take longer, as such blocks get new pages each time."
    )
    return [Counterfactual(text, f"{words.size(facts.memory.unused_bytes)} were free in the heap", None)]

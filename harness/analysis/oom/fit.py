"""What would have been with other settings, as far as this run's own steps or a prediction say so."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.oom.report import BatchPeak, Counterfactual, Held, OomFacts, OomVerdict, PredictedChange
from harness.records.run import DeviceKind

_FARTHEST = 2.0
"""How far beyond the largest batch of the run a line is drawn, as a multiple of it."""


class PeakLine(NamedTuple):
    """peak = `fixed_bytes` + `sample_bytes` · batch, and what it was fitted to, in words."""

    fixed_bytes: float
    sample_bytes: float
    basis: str
    largest_seen: int

    def peak_bytes(self, batch_size: int) -> int:
        """The peak on the line."""
        return round(self.fixed_bytes + self.sample_bytes * batch_size)

    def largest_batch(self, limit_bytes: int) -> int:
        """The largest batch whose peak on the line is within the limit, no farther than the line is drawn."""
        fitting = int((limit_bytes - self.fixed_bytes) // self.sample_bytes)
        return min(fitting, int(self.largest_seen * _FARTHEST))


def fit(peaks: Sequence[BatchPeak], static_bytes: int | None) -> PeakLine | None:
    """A line through the peaks of a run, None without the evidence for one.

    With two batch sizes and more it is the least-squares line; with one, the line from what is held from step
    to step to that peak. The true curve is the highest of several lines, one for each phase of a step, so
    beyond the largest batch the line is a lower bound.
    """
    if len({peak.batch_size for peak in peaks}) >= 2:
        sizes, bytes_ = [p.batch_size for p in peaks], [p.peak_bytes for p in peaks]
        slope, fixed = statistics.linear_regression(sizes, bytes_)
        names = ", ".join(f"{p.batch_size:,} ({words.size(p.peak_bytes)})" for p in peaks)
        basis = f"a line through this run's peaks at batches {names}: {words.size(slope)} a sample"
    elif len(peaks) == 1 and static_bytes is not None:
        (peak,) = peaks
        slope, fixed = (peak.peak_bytes - static_bytes) / peak.batch_size, float(static_bytes)
        basis = (
            f"this run's peak of {words.size(peak.peak_bytes)} at batch {peak.batch_size:,}, of which "
            f"{words.size(static_bytes)} were held between two steps: "
            f"{words.size(slope)} a sample"
        )
    else:
        return None
    if slope <= 0:
        return None
    return PeakLine(fixed, slope, basis, max(p.batch_size for p in peaks))


def counterfactuals(
    facts: OomFacts, verdict: OomVerdict, predicted: Sequence[PredictedChange]
) -> tuple[Counterfactual, ...]:
    """Everything that can be said about other settings, each with its basis; nothing without evidence."""
    found = [*_seen(facts), *_fitted(facts, verdict), *_cap(facts, verdict)]
    found += [
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
        found.append(_expandable(facts.held))
    return tuple(found)


def _seen(facts: OomFacts) -> list[Counterfactual]:
    """The largest smaller batch that this run has trained with: no estimate at all."""
    smaller = [p for p in facts.peaks if p.batch_size < facts.batch_size]
    if not smaller:
        return []
    best = max(smaller, key=lambda p: p.batch_size)
    text = f"Batch {best.batch_size:,} peaked at {words.size(best.peak_bytes)}."
    basis = f"measured in this run, {words.plural(best.steps, 'step')}"
    return [Counterfactual(text, basis, best.peak_bytes)]


def _fitted(facts: OomFacts, verdict: OomVerdict) -> list[Counterfactual]:
    """What other batches would have needed; nothing where it was not the batch that filled the memory."""
    line, limit = fit(facts.peaks, facts.static_bytes), facts.held.limit_bytes
    on_cpu = facts.device is DeviceKind.CPU
    if line is None or verdict is OomVerdict.LEAK or (verdict is OomVerdict.FRAGMENTATION and on_cpu):
        return []
    sizes = [facts.batch_size // 2]
    if limit is not None:
        sizes.append(line.largest_batch(limit))
    known = {p.batch_size for p in facts.peaks}
    found = []
    for size in sorted({s for s in sizes if 1 <= s < facts.batch_size and s not in known}):
        if size > line.largest_seen * _FARTHEST:
            continue
        peak = line.peak_bytes(size)
        at_least = "at least" if size > line.largest_seen else "about"
        found.append(
            Counterfactual(
                f"Batch {size:,} would have peaked at {at_least} {words.size(peak)}.", line.basis, peak
            )
        )
    return found


def _cap(facts: OomFacts, verdict: OomVerdict) -> list[Counterfactual]:
    """The cap counts what the allocator holds, free or not. Where that and the request would lie below it,
    something else took the rest (on the CPU thread stacks, the interpreter), and no figure is named."""
    held, most = facts.held, facts.asked.most_bytes
    base, cap = held.reserved_bytes, held.cap_bytes
    if verdict is not OomVerdict.CAP or base is None or most is None or cap is None or base + most <= cap:
        return []
    needed = base + most
    if held.device_total_bytes is not None and needed > held.device_total_bytes:
        text = f"No cap would have helped: the device has {words.size(held.device_total_bytes)} in all."
        return [Counterfactual(text, f"{words.size(base)} held and {words.size(most)} asked for", None)]
    text = f"A cap above {words.size(needed)} would have let this request through; later ones may need more."
    return [Counterfactual(text, f"{words.size(base)} held and {words.size(most)} asked for", needed)]


def _expandable(held: Held) -> Counterfactual:
    return Counterfactual(
        f"{words.EXPANDABLE_SEGMENTS} would help: segments then grow in place, and what lies free in them "
        "can be joined.",
        f"{words.size(held.unused_bytes)} were reserved and in no tensor",
        None,
    )

"""The peak of other batch sizes, from the peaks that a run has measured.

The memory that a step needs beyond the baseline is nearly proportional to its samples (activations, their
gradients, inputs), the baseline is not (weights, optimizer state). With steps of two sizes or more, such as
an uneven last batch of each epoch, both parts are fitted. With one size the transient part is taken as
proportional, which overestimates larger batches: neither workspaces nor the temporaries of the optimizer's
update grow with them. Once the batch has been changed and the peak has not grown, it is taken as constant.
The true curve is the highest of several lines, or grows faster than a line (the logits between all pairs of
a batch), so that with three sizes or more the line through the two largest ones may be the higher one.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.records.memory import MeasuredPeak

# Fewer steps of one size may have missed its peak, which is sampled on the CPU.
LEAST_STEPS = 8
# Sizes that are closer to each other determine no slope.
LEAST_RATIO = 1.5
# A peak that falls by a larger share with a larger batch was a single high one of the smaller.
_MOST_FALL = 0.02
# A share of the limit that is left free, for what no step has needed so far.
MARGIN = 0.05


class PeakFit(NamedTuple):
    """The peak as a line: `fixed_bytes` plus `bytes_per_sample` per sample of a step."""

    fixed_bytes: float
    bytes_per_sample: float
    # The sizes of steps that it rests on, ascending.
    sizes: tuple[int, ...]
    # The line through the two largest sizes, if it is higher beyond them.
    beyond: "PeakFit | None" = None

    @property
    def is_proportional(self) -> bool:
        """True when steps had one size, so that the transient memory is taken as proportional to it."""
        return len(self.sizes) == 1

    def peak_bytes(self, samples: int) -> int:
        """Return the peak of steps with `samples` samples."""
        peak_bytes = round(self.fixed_bytes + self.bytes_per_sample * samples)
        return peak_bytes if self.beyond is None else max(peak_bytes, self.beyond.peak_bytes(samples))

    def largest(self, limit_bytes: int) -> int | None:
        """Return the most samples whose peak stays below the limit by `MARGIN`; 0 when nothing fits, None
        when memory does not grow with samples."""
        if self.bytes_per_sample <= 0:
            return None
        most = max(0, int((limit_bytes * (1 - MARGIN) - self.fixed_bytes) / self.bytes_per_sample))
        beyond = None if self.beyond is None else self.beyond.largest(limit_bytes)
        return most if beyond is None else min(most, beyond)


def fit_peak(measured: Iterable[MeasuredPeak], gradient_bytes: int = 0) -> PeakFit | None:
    """Return the line through the measured peaks; None when too few steps have one, or nothing is
    transient. `gradient_bytes` is the part of the baseline that is freed before the next forward pass."""
    by_version = [one for one in measured if one.samples > 0]
    usable = [one for one in _by_samples(by_version) if one.steps >= LEAST_STEPS]
    if not usable:
        return None
    fit = _with_beyond(_line(usable), usable) if _determine_slope(usable) else None
    return (
        fit
        or _constant(by_version, usable)
        or _proportional(max(usable, key=lambda one: one.steps), gradient_bytes)
    )


def _by_samples(measured: Iterable[MeasuredPeak]) -> list[MeasuredPeak]:
    """Return one entry per size, ascending, over all versions of the settings."""
    sizes: dict[int, MeasuredPeak] = {}
    for one in measured:
        other = sizes.get(one.samples, one._replace(steps=0))
        sizes[one.samples] = one._replace(
            steps=one.steps + other.steps,
            peak_bytes=max(one.peak_bytes, other.peak_bytes),
            baseline_bytes=max(one.baseline_bytes, other.baseline_bytes),
        )
    return [sizes[samples] for samples in sorted(sizes)]


def _determine_slope(ascending: Sequence[MeasuredPeak]) -> bool:
    return ascending[-1].samples >= LEAST_RATIO * ascending[0].samples


def _constant(by_version: Iterable[MeasuredPeak], usable: Sequence[MeasuredPeak]) -> PeakFit | None:
    """Return the highest peak for every size if it does not grow from the usual size of one version of the
    settings to that of another. A smaller last batch of an epoch is no evidence: where steps are short, it
    has the reading of a larger one."""
    most: dict[int, MeasuredPeak] = {}
    for one in by_version:
        if one.steps > most.get(one.settings_version, one._replace(steps=0)).steps:
            most[one.settings_version] = one
    usual_samples = {one.samples for one in most.values()}
    usual = [one for one in usable if one.samples in usual_samples]
    if not usual or not _determine_slope(usual):
        return None
    highest_bytes = max(one.peak_bytes for one in usual)
    if usual[-1].peak_bytes < (1 - _MOST_FALL) * highest_bytes:
        return None
    return PeakFit(highest_bytes, 0.0, tuple(one.samples for one in usual))


def _proportional(one: MeasuredPeak, gradient_bytes: int) -> PeakFit | None:
    if one.peak_bytes <= one.baseline_bytes:
        return None
    fixed_bytes = max(0, one.baseline_bytes - gradient_bytes)
    return PeakFit(fixed_bytes, (one.peak_bytes - fixed_bytes) / one.samples, (one.samples,))


def _with_beyond(fit: PeakFit | None, ascending: Sequence[MeasuredPeak]) -> PeakFit | None:
    """Return `fit` with the line through the two largest sizes, if that is higher beyond them."""
    largest = ascending[-1]
    smaller = [one for one in ascending if largest.samples >= LEAST_RATIO * one.samples]
    if fit is None or (beyond := _line((smaller[-1], largest))) is None:
        return fit
    is_higher = beyond.peak_bytes(2 * largest.samples) > fit.peak_bytes(2 * largest.samples)
    return fit._replace(beyond=beyond) if is_higher else fit


def _line(points: Sequence[MeasuredPeak]) -> PeakFit | None:
    """Least squares, weighted by steps; None unless the peak grows with samples."""
    weight = sum(one.steps for one in points)
    mean_samples = sum(one.steps * one.samples for one in points) / weight
    mean_peak = sum(one.steps * one.peak_bytes for one in points) / weight
    spread = sum(one.steps * (one.samples - mean_samples) ** 2 for one in points)
    slope = (
        sum(one.steps * (one.samples - mean_samples) * (one.peak_bytes - mean_peak) for one in points)
        / spread
    )
    if slope <= 0:
        return None
    return PeakFit(mean_peak - slope * mean_samples, slope, tuple(one.samples for one in points))

"""Variation of the sizes of a run's steps, as with batches of varying length."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.analysis.leak.growth import LEAST_RISE
from harness.records.run import StepRow

# Steps differ if the 10th to 90th percentile range of their transient memory, or of their samples or tokens,
# exceeds this share of the median: in runs of the catalog that of the memory is 0.0 to 0.3 with uniform
# batches, 0.4 to 1.6 with random lengths.
DIFFERENT = 0.35
# The same for the range of memory at the ends of the forward passes, as a share of the median transient
# memory: in scripts that train a transformer it is below 0.02 with uniform batches; with random lengths 1.5,
# and 0.22 where activations are computed again.
DIFFERENT_FORWARD = 0.1
_STEPS = 64
_LEAST_STEPS = _STEPS // 2


class StepVariation:
    """Collects what is known of the sizes of the newest steps."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Discard all sizes after a change of settings."""
        self._peaks: deque[int] = deque(maxlen=_STEPS)
        self._batches: deque[int] = deque(maxlen=_STEPS)
        self._forward_ends: Sequence[int] = ()

    def add_step(self, row: StepRow, transient_bytes: int | None) -> None:
        """Add a step with a reading and the peak of its memory above its end; None or 0 if no peak was
        caught."""
        if transient_bytes:
            self._peaks.append(transient_bytes)
        if batch := row.tokens or row.samples:
            self._batches.append(batch)

    def set_forward_ends(self, forward_end_bytes: Sequence[int]) -> None:
        """Set the memory at the ends of the newest forward passes, each relative to that at the end of its
        step; empty if unknown."""
        self._forward_ends = forward_end_bytes

    def differs(self) -> bool:
        """Return whether steps differ in size: in samples or tokens, or in transient memory, at the same
        moment of each step where it is known there. Peaks that a thread samples on the CPU also differ
        between uniform steps, by the moment at which each was caught. Memory below 1 MiB does not differ."""
        peaks = _percentiles(self._peaks) if len(self._peaks) >= _LEAST_STEPS else None
        if peaks is not None:
            if peaks.middle < LEAST_RISE:
                return False
            if len(self._forward_ends) >= _LEAST_STEPS:
                is_different = _percentiles(self._forward_ends).spread >= DIFFERENT_FORWARD * peaks.middle
            else:
                is_different = peaks.spread >= DIFFERENT * peaks.middle
            if is_different:
                return True
        if len(self._batches) < _LEAST_STEPS:
            return False
        batches = _percentiles(self._batches)
        return batches.spread >= DIFFERENT * batches.middle


class _Percentiles(NamedTuple):
    """The 50th percentile, and the difference of the 10th and the 90th."""

    middle: int
    spread: int


def _percentiles(sizes: Iterable[int]) -> _Percentiles:
    ordered = sorted(sizes)
    low, middle, high = (ordered[len(ordered) * tenths // 10] for tenths in (1, 5, 9))
    return _Percentiles(middle, high - low)

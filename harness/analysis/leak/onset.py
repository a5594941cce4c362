"""The step at which memory that grows has begun to, where it was flat before."""

from typing import NamedTuple

import numpy as np

from harness.analysis.leak.history import Minima
from harness.analysis.leak.trend import Floats, Trend, trend

# Fewer blocks before or after the onset have no slope.
_LEAST_BLOCKS = 6
# Flat: the upper limit of the slope before the onset is below this share of the slope after it.
_FLAT = 0.2
# At the slope after the onset, memory would have risen before it by this many standard deviations.
_CLEARLY = 5.0


class Onset(NamedTuple):
    """The begin of a growth: its step, and the trend and the rise in bytes from there on."""

    step: int
    trend: Trend
    risen_bytes: float


def onset(blocks: Minima) -> Onset | None:
    """Return the onset of the growth of `blocks`; None if they grow from the first one on, as far as their
    scatter shows. It is the corner of the line that fits them best, level up to there and straight then."""
    steps, values = blocks
    if len(values) < 2 * _LEAST_BLOCKS:
        return None
    corner = _corner(steps, values)
    after = trend(steps[corner:], values[corner:])
    before = trend(steps[: corner + 1], values[: corner + 1])
    is_flat = max(before.slope, before.high) < _FLAT * after.slope
    expected = after.slope * float(steps[corner] - steps[0])
    if not is_flat or expected < _CLEARLY * before.residual:
        return None
    newest = values[corner:]
    rise = min(after.slope * float(steps[-1] - steps[corner]), float(newest.max() - newest.min()))
    return Onset(int(steps[corner]), after, rise)


def _corner(steps: Floats, values: Floats) -> int:
    """Return the index of the corner, by least squares."""
    corners = np.arange(_LEAST_BLOCKS - 1, len(values) - _LEAST_BLOCKS + 1)
    beyond = np.maximum(steps - steps[corners][:, None], 0.0)
    beyond -= beyond.mean(axis=1, keepdims=True)
    centered = values - values.mean()
    explained = (beyond @ centered) ** 2 / (beyond**2).sum(axis=1)
    return int(corners[explained.argmax()])

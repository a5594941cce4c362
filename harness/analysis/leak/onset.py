"""The step at which memory that grows has begun to, where it was flat before."""

from typing import NamedTuple

import numpy as np

from harness.analysis.leak.history import Minima, coarse
from harness.analysis.leak.trend import Floats, Trend, trend

# Fewer blocks before or after the onset have no slope.
_LEAST_BLOCKS = 6
# A trend compares all pairs of blocks; of this many and more, blocks are merged for it.
_MANY_BLOCKS = 48
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
    after = _trend(Minima(steps[corner:], values[corner:]))
    before = _trend(Minima(steps[: corner + 1], values[: corner + 1]))
    is_flat = max(before.slope, before.high) < _FLAT * after.slope
    expected = after.slope * float(steps[corner] - steps[0])
    if not is_flat or expected < _CLEARLY * before.residual:
        return None
    newest = values[corner:]
    rise = min(after.slope * float(steps[-1] - steps[corner]), float(newest.max() - newest.min()))
    return Onset(int(steps[corner]), after, rise)


def _trend(blocks: Minima) -> Trend:
    return trend(*(blocks if len(blocks.values) < _MANY_BLOCKS else coarse(blocks, _MANY_BLOCKS // 2)))


def _corner(steps: Floats, values: Floats) -> int:
    """Return the index of the corner, by least squares. By sums over the blocks after each one: a table of
    all blocks for all corners, and a product with it by numpy's BLAS, would take tens of MiB, which count
    under a limit of the process."""
    x = (steps - steps[0]) / (steps[-1] - steps[0])
    y = values - values.mean()
    count, x_sum, x_squares, y_sum, products = (
        terms[::-1].cumsum()[::-1] for terms in (np.ones_like(x), x, x * x, y, x * y)
    )
    beyond, squares = x_sum - count * x, x_squares - 2 * x * x_sum + count * x * x
    inner = slice(_LEAST_BLOCKS - 1, len(x) - _LEAST_BLOCKS + 1)
    explained = (products - x * y_sum)[inner] ** 2 / (squares - beyond * beyond / len(x))[inner]
    return _LEAST_BLOCKS - 1 + int(explained.argmax())

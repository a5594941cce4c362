"""Rank statistics of a short series: does it rise, how fast, and how far does it fall back?

Mann and Kendall's test and Theil and Sen's slope look only at the order of pairs and at the middle of their
slopes, so single spikes do not move them. Sources: Mann 1945; Kendall 1975 (variance with ties); Sen 1968
(slope and its interval from the same variance).
"""

from collections import Counter
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NORMAL_95 = 1.96
"""The normal distribution's quantile at 97.5 %: a two-sided interval of 95 %."""


class Trend(NamedTuple):
    """What a series does over its whole length. Slopes are in its unit per unit of x."""

    z: float
    """Mann and Kendall's statistic, normal for a series without a trend."""
    slope: float
    low: float
    high: float
    residual: float
    """The spread of the series around its line: 1.4826 × the median absolute deviation, which for normal
    noise is its standard deviation."""


def trend(x: Floats, y: Floats) -> Trend:
    """The trend of `y` over `x`, which increases strictly; both have the same length of two and more."""
    first, second = _PAIRS.get(len(x)) or _PAIRS.setdefault(len(x), np.triu_indices(len(x), 1))
    rises = y[second] - y[first]
    deviation = sqrt(_variance(y))
    score = float(np.sign(rises).sum())
    z = (abs(score) - 1.0) / deviation * (1 if score > 0 else -1) if score and deviation else 0.0
    slopes = np.sort(rises / (x[second] - x[first]))
    middle = (len(slopes) - 1) / 2
    slope = _middle(slopes)
    rest = y - slope * x
    rest -= _middle(np.sort(rest))
    half = NORMAL_95 * deviation * sqrt(_memory(rest)) / 2
    low, high = _at(slopes, middle - half), _at(slopes, middle + half)
    return Trend(z, slope, low, high, 1.4826 * _middle(np.sort(np.abs(rest))))


def drawdown(y: Floats) -> float:
    """The furthest the series ever fell below what it had reached."""
    return float(np.max(np.maximum.accumulate(y) - y))


_PAIRS: dict[int, tuple[npt.NDArray[np.intp], ...]] = {}
"""The index pairs of a series of so many values."""


def _middle(ordered: Floats) -> float:
    """The median of what is in order already; `np.median` would order it again."""
    at = len(ordered) // 2
    return float(ordered[at]) if len(ordered) % 2 else float(ordered[at - 1] + ordered[at]) / 2


def _at(ordered: Floats, place: float) -> float:
    """The value at `place`, between two neighbours in proportion; the first and last beyond the ends."""
    place = min(max(place, 0.0), len(ordered) - 1.0)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low]) + float(ordered[high] - ordered[low]) * (place - low)


def _memory(rest: Floats) -> float:
    """How many neighbours tell the same as one: (1 + r) / (1 − r) with the residuals' correlation r from one
    to the next, no less than 1. Where each resembles the one before, an interval that takes them for
    independent is too narrow."""
    power = float(rest @ rest)
    if power == 0:
        return 1.0
    correlation = min(max(float(rest[1:] @ rest[:-1]) / power, 0.0), 0.9)
    return (1 + correlation) / (1 - correlation)


def _variance(y: Floats) -> float:
    """The variance of Mann and Kendall's score without a trend, corrected for ties."""
    n = len(y)
    tied = sum(ties * (ties - 1) * (2 * ties + 5) for ties in Counter(y.tolist()).values())
    return (n * (n - 1) * (2 * n + 5) - tied) / 18.0

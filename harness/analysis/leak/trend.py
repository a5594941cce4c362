"""Rank statistics of a short series: trend test, slope and drawdown.

The Mann-Kendall test and the Theil-Sen slope use only the order of pairs and the median of their slopes, so
single spikes do not affect them. Sources: Mann 1945; Kendall 1975 (variance with ties); Sen 1968 (slope and
its interval from the same variance).
"""

from collections import Counter
from functools import cache
from math import sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# The normal distribution's quantile at 97.5 %: a two-sided interval of 95 %.
NORMAL_95 = 1.96


class Trend(NamedTuple):
    """Trend of a series over its whole length. Slopes are in its unit per unit of x."""

    # Mann-Kendall statistic; standard normal for a series without a trend.
    z: float
    slope: float
    low: float
    high: float
    # The spread of the series around its line: 1.4826 × the median absolute deviation, which for normal
    # noise is its standard deviation.
    residual: float


def trend(x: Floats, y: Floats) -> Trend:
    """Return the trend of `y` over the strictly increasing `x`; both have the same length, at least two."""
    if (y == y[0]).all():  # As memory that is reserved once; what follows comes to the same.
        return Trend(0.0, 0.0, 0.0, 0.0, 0.0)
    first, second = _pairs(len(x))
    rises = y[second] - y[first]
    deviation = sqrt(_variance(y))
    slopes = np.sort(rises / (x[second] - x[first]))
    middle = (len(slopes) - 1) / 2
    slope = _middle(slopes)
    rest = y - slope * x
    rest -= _middle(np.sort(rest))
    half = NORMAL_95 * deviation * sqrt(_memory(rest)) / 2
    low, high = _at(slopes, middle - half), _at(slopes, middle + half)
    return Trend(_z(rises, deviation), slope, low, high, 1.4826 * _middle(np.sort(np.abs(rest))))


def mann_kendall(y: Floats) -> float:
    """Return the Mann-Kendall statistic `Trend.z` alone, in a third of the time."""
    first, second = _pairs(len(y))
    return _z(y[second] - y[first], sqrt(_variance(y)))


def drawdown(y: Floats) -> float:
    """Return the largest fall of the series below its running maximum."""
    return float(np.max(np.maximum.accumulate(y) - y))


def _pairs(length: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the indices of the earlier and the later value of all pairs in a series."""
    later, earlier = _pairs_of_longest(1 << (length - 1).bit_length())
    count = length * (length - 1) // 2
    return earlier[:count], later[:count]


# Not one per length: on the CPU such tables are a part of the memory that is judged.
@cache
def _pairs_of_longest(length: int) -> tuple[npt.NDArray[np.intp], ...]:
    """Return the indices of the later and the earlier value of all pairs, ordered by the later one: those of
    a shorter series come first."""
    return np.tril_indices(length, -1)


def _z(rises: Floats, deviation: float) -> float:
    """Return the Mann-Kendall statistic from the differences of all pairs."""
    score = float(np.sign(rises).sum())
    return (abs(score) - 1.0) / deviation * (1 if score > 0 else -1) if score and deviation else 0.0


def _middle(ordered: Floats) -> float:
    """Return the median of sorted values; `np.median` would sort them again."""
    at = len(ordered) // 2
    return float(ordered[at]) if len(ordered) % 2 else float(ordered[at - 1] + ordered[at]) / 2


def _at(ordered: Floats, place: float) -> float:
    """Return the value at `place` by linear interpolation; the first or last value beyond the ends."""
    place = min(max(place, 0.0), len(ordered) - 1.0)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return float(ordered[low]) + float(ordered[high] - ordered[low]) * (place - low)


def _memory(rest: Floats) -> float:
    """Return the variance inflation (1 + r) / (1 − r), at least 1, with the lag-1 autocorrelation r of the
    residuals: with autocorrelation, an interval that assumes independence is too narrow."""
    power = float(rest @ rest)
    if power == 0:
        return 1.0
    correlation = min(max(float(rest[1:] @ rest[:-1]) / power, 0.0), 0.9)
    return (1 + correlation) / (1 - correlation)


def _variance(y: Floats) -> float:
    """Return the variance of the Mann-Kendall score without a trend, corrected for ties."""
    n = len(y)
    tied = sum(ties * (ties - 1) * (2 * ties + 5) for ties in Counter(y.tolist()).values())
    return (n * (n - 1) * (2 * n + 5) - tied) / 18.0

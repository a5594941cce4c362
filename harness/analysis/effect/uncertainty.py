"""Intervals for the difference between two windows of an autocorrelated series.

* The standard error of a mean comes from the equal-weighted cosine estimator of the long-run variance
  (Lazarus, Lewis, Stock and Watson, 2018, "HAR inference", J. Business & Economic Statistics 36): with B = 3
  cosines per side the difference has a t distribution with about 6 degrees of freedom, for any
  autocorrelation.
* The interval of a quantile is that of the share of steps below it, read off at the order statistics
  (Woodruff, 1952, J. American Statistical Association 47), so it is asymmetric if long steps are.
* Two intervals are combined into one for the difference by the distances to the limits (MOVER: Zou and
  Donner, 2008, Statistics in Medicine 27).
* Two windows cannot show slower changes of the machine. `widening` compares neighboring windows of the run's
  own history and returns the factor by which intervals must be wider to cover those differences.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from harness.analysis.effect.windows import SteadyStep, StepWindow

# Range of the quantile of step times used as the undisturbed step, and the number of steps below it. Other
# processes make some steps longer and affect the fastest least: between the windows of a run beside another
# process lower quantiles differ less than higher ones, but they need some steps below them to be stable.
_LEAST_SHARE, _MOST_SHARE = 0.005, 0.1
_STEPS_BELOW = 5
# A lower quantile for comparison, as a share of the quantile. More work makes all steps longer by the same
# factor, including the fastest; a busier machine affects the fastest steps least.
_FLOOR = 0.25

# Cosines per window; a difference has twice as many degrees of freedom.
COSINES = 3
DEGREES = 2 * COSINES
# Blocks of a window: 0.25 s each in the shortest window, with at least four steps per block.
_MOST_BLOCKS, _LEAST_BLOCKS, _BLOCK_STEPS = 40, 8, 4
# The variance of Student's t with `DEGREES` degrees of freedom.
_T_VARIANCE = DEGREES / (DEGREES - 2)
# Cap on the deviation of one pair of windows.
_MOST_DEVIATION = 12.0


class Estimate(Protocol):
    """A statistic of a window, as a logarithm, with its uncertainty."""

    @property
    def value(self) -> float:
        """The estimate."""
        ...

    def limits(self, errors: float) -> tuple[float, float]:
        """Return the limits `errors` standard errors below and above."""
        ...


class Quantile(NamedTuple):
    """The quantile at `share` of the logarithms of step times. `share_error` is the standard error of the
    share of steps below it."""

    ordered: Sequence[float]
    share: float
    share_error: float

    @property
    def value(self) -> float:
        """The quantile."""
        return self._at(self.share)

    @property
    def floor(self) -> float:
        """A lower quantile, for comparison."""
        return self._at(_FLOOR * self.share)

    def limits(self, errors: float) -> tuple[float, float]:
        """Return the quantiles `errors` standard errors of the share below and above."""
        reach = errors * self.share_error
        return self._at(self.share - reach), self._at(self.share + reach)

    def _at(self, share: float) -> float:
        place = min(max(share, 0.0), 1.0) * (len(self.ordered) - 1)
        below = int(place)
        above = min(below + 1, len(self.ordered) - 1)
        return self.ordered[below] + (place - below) * (self.ordered[above] - self.ordered[below])


class Rate(NamedTuple):
    """The logarithm of a ratio of sums, and its standard error."""

    value: float
    error: float

    def limits(self, errors: float) -> tuple[float, float]:
        """Return the limits `errors` standard errors below and above."""
        return self.value - errors * self.error, self.value + errors * self.error


class Difference(NamedTuple):
    """The logarithm of a ratio, after to before, with the limits of its interval."""

    value: float
    low: float
    high: float


def low_share(steps: int) -> float:
    """Return the quantile, from 0 to 1, of the undisturbed step for windows of `steps` steps."""
    return min(max(_STEPS_BELOW / steps, _LEAST_SHARE), _MOST_SHARE)


def step_quantile(window: StepWindow, share: float) -> Quantile:
    """Return the undisturbed step: the quantile of step times at `share`."""
    ordered = sorted(math.log(step.step_ns) for step in window.steps)
    quantile = Quantile(ordered, share, 0.0)
    limit_ns = math.exp(quantile.value) * (1 + 1e-12)
    error = _error_of_sum(window, lambda step: (step.step_ns <= limit_ns) - share)
    return quantile._replace(share_error=error)


def sample_rate(window: StepWindow) -> Rate:
    """Return the samples per nanosecond, over all steps."""
    total_ns = sum(step.passed_ns for step in window.steps)
    rate = sum(step.samples * step.step_count for step in window.steps) / total_ns
    error = _error_of_sum(window, lambda step: step.samples * step.step_count - rate * step.passed_ns)
    return Rate(math.log(rate), error * len(window.steps) / (rate * total_ns))


def difference(before: Estimate, after: Estimate, errors: float, least: float) -> Difference:
    """Return after minus before, with limits at `errors` standard errors and at a distance of at least
    `least`."""
    value = after.value - before.value
    (before_low, before_high), (after_low, after_high) = before.limits(errors), after.limits(errors)
    down = math.hypot(after.value - after_low, before_high - before.value)
    up = math.hypot(after_high - after.value, before.value - before_low)
    return Difference(value, value - max(down, least), value + max(up, least))


def widening(pairs: Sequence[tuple[Estimate, Estimate]], errors: float, least: float) -> float:
    """Return the factor for intervals of `difference`, from pairs of windows between which nothing changed.

    The mean square of their differences, in units of the standard error, is pooled with the `DEGREES` degrees
    of freedom of the standard error itself. At least 1.
    """
    squares = []
    for before, after in pairs:
        change = difference(before, after, errors, least)
        reach = change.value - change.low if change.value > 0 else change.high - change.value
        deviation = min(_MOST_DEVIATION, errors * abs(change.value) / reach)
        squares.append(deviation**2 / _T_VARIANCE)
    return max(1.0, math.sqrt((DEGREES + sum(squares)) / (DEGREES + len(squares))))


def _error_of_sum(window: StepWindow, part: "_Part") -> float:
    """Return the standard error of the mean of `part` over the steps: from cosines over blocks of equal time,
    and at least that of independent steps."""
    number = min(_MOST_BLOCKS, max(_LEAST_BLOCKS, len(window.steps) // _BLOCK_STEPS))
    sums, square = [], 0.0
    for block in window.blocks(number):
        parts = [part(step) for step in block]
        sums.append(math.fsum(parts))
        square += math.fsum(value * value for value in parts)
    long_run = 0.0
    for wave in range(1, COSINES + 1):
        angle = math.pi * wave / number
        weight = math.fsum(value * math.cos(angle * (at + 0.5)) for at, value in enumerate(sums))
        long_run += 2 * weight * weight / COSINES
    return math.sqrt(max(long_run, square)) / len(window.steps)


class _Part(Protocol):
    def __call__(self, step: SteadyStep, /) -> float: ...

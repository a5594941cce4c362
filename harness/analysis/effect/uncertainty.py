"""Intervals for the difference between two windows of a series whose neighbours are alike.

* The standard error of a mean comes from the equal-weighted cosine estimator of the long-run variance
  (Lazarus, Lewis, Stock and Watson, 2018, "HAR inference", J. Business & Economic Statistics 36): with B = 3
  cosines a side the difference has a t distribution with some 6 degrees of freedom, whatever the neighbours
  have in common.
* The interval of a quantile is that of the share of steps below it, read off at the order statistics
  (Woodruff, 1952, J. American Statistical Association 47), so that it reaches as far to the side of the long
  steps as these demand.
* Two intervals make one for the difference by the distances to the limits (MOVER: Zou and Donner, 2008,
  Statistics in Medicine 27).
* What slower changes of the machine add, two windows cannot show. `widening` compares neighbouring windows of
  the run's own history and says how much wider intervals have to be to hold what happened there.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from harness.analysis.effect.windows import Passage, StepWindow

# The quantile of step times that stands for the undisturbed step lies between these, with so many steps below
# it. Other processes make some steps longer and leave the fastest as they are: the lower the quantile, the
# busier they may be. It takes some steps below it to be stable.
_LEAST_SHARE, _MOST_SHARE = 0.02, 0.1
_STEPS_BELOW = 32
# A lower quantile for comparison, as a share of the quantile. More work makes all steps longer by the same
# factor, the fastest ones too; a busier machine does so the less, the faster they are.
_FLOOR = 0.25

# Cosines for each window; twice as many are the degrees of freedom of a difference.
COSINES = 3
DEGREES = 2 * COSINES
# Blocks of a window: 0.25 s of the shortest. At least four steps make a block.
_MOST_BLOCKS, _LEAST_BLOCKS, _BLOCK_STEPS = 40, 8, 4
# The variance of Student's t with `DEGREES` degrees of freedom.
_T_VARIANCE = DEGREES / (DEGREES - 2)
# One extraordinary pair of windows counts for no more.
_MOST_DEVIATION = 12.0


class Estimate(Protocol):
    """A statistic of a window, as a logarithm, with its uncertainty."""

    @property
    def value(self) -> float:
        """The estimate itself."""
        ...

    def limits(self, errors: float) -> tuple[float, float]:
        """So many standard errors below and above."""
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
        """The quantiles so many errors of the share away."""
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
        """So many errors to both sides."""
        return self.value - errors * self.error, self.value + errors * self.error


class Difference(NamedTuple):
    """The logarithm of a ratio, after to before, with the limits of its interval."""

    value: float
    low: float
    high: float


def low_share(steps: int) -> float:
    """The quantile that stands for the undisturbed step in windows of so many steps, from 0 to 1."""
    return min(max(_STEPS_BELOW / steps, _LEAST_SHARE), _MOST_SHARE)


def step_quantile(window: StepWindow, share: float) -> Quantile:
    """The undisturbed step: the quantile of step times at `share`."""
    ordered = sorted(math.log(step.step_ns) for step in window.steps)
    quantile = Quantile(ordered, share, 0.0)
    limit_ns = math.exp(quantile.value) * (1 + 1e-12)
    error = _error_of_sum(window, lambda step: (step.step_ns <= limit_ns) - share)
    return quantile._replace(share_error=error)


def sample_rate(window: StepWindow) -> Rate:
    """Samples per nanosecond, over all steps."""
    total_ns = sum(step.passed_ns for step in window.steps)
    rate = sum(step.samples * step.step_count for step in window.steps) / total_ns
    error = _error_of_sum(window, lambda step: step.samples * step.step_count - rate * step.passed_ns)
    return Rate(math.log(rate), error * len(window.steps) / (rate * total_ns))


def difference(before: Estimate, after: Estimate, errors: float, least: float) -> Difference:
    """After minus before, with limits of so many standard errors, and `least` away at least."""
    value = after.value - before.value
    (before_low, before_high), (after_low, after_high) = before.limits(errors), after.limits(errors)
    down = math.hypot(after.value - after_low, before_high - before.value)
    up = math.hypot(after_high - after.value, before.value - before_low)
    return Difference(value, value - max(down, least), value + max(up, least))


def widening(pairs: Sequence[tuple[Estimate, Estimate]], errors: float, least: float) -> float:
    """How much wider intervals of `difference` have to be, by pairs of windows between which nothing changed.

    The mean square of what they differ by, in units of the standard error, is pooled with the `DEGREES`
    degrees of freedom that the standard error itself rests on. Never below 1.
    """
    squares = []
    for before, after in pairs:
        found = difference(before, after, errors, least)
        reach = found.value - found.low if found.value > 0 else found.high - found.value
        deviation = min(_MOST_DEVIATION, errors * abs(found.value) / reach)
        squares.append(deviation**2 / _T_VARIANCE)
    return max(1.0, math.sqrt((DEGREES + sum(squares)) / (DEGREES + len(squares))))


def _error_of_sum(window: StepWindow, part: "_Part") -> float:
    """The standard error of the mean of `part` over the steps: by cosines over blocks of equal time, and no
    less than if the steps were independent."""
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
    def __call__(self, step: Passage, /) -> float: ...

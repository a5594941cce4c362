"""Online leak test for one series of memory readings.

The history since the start, or since the last change of settings, is reduced to 24 block minima, which
transient memory does not raise. The series *grows* (verdict "watch") if the Mann-Kendall test is significant,
the rise is large enough, it never fell back and no single jump accounts for most of it. It *leaks* if its
second half also grows by itself, about as fast as the whole, and the rise consists of more than a few jumps.
Both the whole history and its newer half are tested, so that neither a slow leak nor a late one is missed.
A verdict is withdrawn once the last quarter has leveled off or the memory is freed. It is no more than
"watch" while the last eighth does not grow, as with a cache that is full. Measured accuracy: docs/leaks.md.
"""

from math import isfinite
from typing import NamedTuple

import numpy as np

from harness.analysis.leak.history import History, Minima, coarse
from harness.analysis.leak.onset import Onset, onset
from harness.analysis.leak.trend import Floats, Trend, drawdown, mann_kendall, trend
from harness.records.memory import LeakVerdict

BLOCKS = 24
_QUARTER = BLOCKS // 4
LEAST_SAMPLES = 2 * BLOCKS
# Fewer readings take only seconds, and much healthy memory rises at first.
LEAST_FOR_LEAK = 96

_LEAST_NEW = 4

# Two-sided 0.1 %.
SURE_Z = 3.29
# A growing series stays growing until z falls below this: with a single threshold the verdict would flicker.
DOUBTFUL_Z = 1.96
LEAST_RISE = float(2**20)
# A fall by this share of the whole range is a recovery.
RECOVERED = 0.5
# A rise of up to this multiple of an earlier rise that was freed may be freed again, as a list cleared after
# each epoch is. Block minima miss up to a twelfth of a rise at either end.
AGAIN = 1.25
# A lasting jump of more than this share of the rise is excluded, with everything before it.
JUMP = 0.5
STAIRS = 4
# If `STAIRS` lasting jumps account for more than this share of the rise, beyond an even rise between the same
# steps, the verdict stays "watch": arenas and caches of libraries, each filled once, have this shape in the
# first hundred steps. Five equal jumps exceed the share, six do not.
FEW_STAIRS = 0.5
# Minimum ratio of the second half's slope to the whole's for a leak.
STEADILY = 0.7
LEVELED = 0.4
# Leveled off: the ratio of the last quarter's slope to the whole's is at most `LEVELED`, and the upper limit
# of its interval is below `SLOWED`.
SLOWED = 0.5

# Full: the upper limit of the slope of the newest blocks, those of the last eighth of the steps and at least
# six, is below this share of the whole's.
FULL = 0.2
_EIGHTH = 8
_LEAST_FULL = 6

# A rise of this many standard deviations of the block minima is nearly always detected.
_NOISE_RISE = 5.0
# The rise must be detectable in half the history; slightly more, since the test runs only at intervals.
_TWICE = 2.1


class Judgment(NamedTuple):
    """The current verdict on a series, from `since_step` on. Figures are None while it is too early.
    `detection_limit` is the smallest slope that would have been detected as a leak by now. `full_since` is
    the step since which what has grown no longer does; None if it does. `settles_below` is the growth below
    which the heap may still settle; None if that is no reason. `onset` is the begin of the growth, if it is
    known: the verdict is on a stretch that may have begun before or after it."""

    verdict: LeakVerdict
    since_step: int
    last_step: int
    trend: Trend | None = None
    risen_bytes: float | None = None
    detection_limit: float | None = None
    full_since: int | None = None
    settles_below: float | None = None
    onset: Onset | None = None

    def from_onset(self) -> "Judgment":
        """Return the same verdict with the figures of the growth from its onset on."""
        if self.onset is None:
            return self
        step, fit, risen_bytes = self.onset
        return self._replace(since_step=step, trend=fit, risen_bytes=risen_bytes)

    def retaining(self, leak: "Judgment | None") -> "Judgment":
        """Return the verdict on a series that was restarted while its verdict was `leak`: that one, until
        there are enough readings for a new verdict, and while the growth goes on."""
        if leak is not None and self.verdict is LeakVerdict.TOO_EARLY:
            return leak._replace(last_step=self.last_step, detection_limit=None)
        goes_on = self.verdict is LeakVerdict.WATCH and self.full_since is None
        return self._replace(verdict=LeakVerdict.LEAK) if leak is not None and goes_on else self


class _StretchTest(NamedTuple):
    """Test results for one stretch of the history."""

    trend: Trend
    since_step: int
    span: int
    # True if it rises and has not leveled off.
    grows: bool
    # True if the second half of the stretch grows by itself, about as fast as the whole.
    keeps_growing: bool
    # True if it falls back, and rises more often than it falls: noise rises and falls equally often.
    has_teeth: bool
    fell: float
    # Up to the newest block: the coarse blocks leave out the remainder of the stretch, up to a fifth of it.
    risen: float
    # Excess of its largest lasting jumps over an even rise, if too large for a leak; else 0.
    stairs: float


class GrowthJudge:
    """Collects the readings of one series in the order of their steps and returns a verdict on request.

    Attributes:
        least_for_leak: the number of readings required for the verdict "leak" when it was last requested.
    """

    def __init__(self) -> None:
        self.least_for_leak = LEAST_FOR_LEAK
        self.restart()

    @property
    def samples(self) -> int:
        """Readings since the last start."""
        return self._history.samples

    def restart(self) -> None:
        """Forget everything: what comes now cannot be compared with what was."""
        self._history = History()
        self._state = LeakVerdict.TOO_EARLY
        self._due = 0
        self._judgment = Judgment(LeakVerdict.TOO_EARLY, 0, 0)

    def add(self, step: int, value: float | None) -> None:
        """Add a reading. Missing and non-finite values are ignored; a step that is not newer restarts."""
        if value is None or not isfinite(value):
            return
        if self._history.samples and step <= self._history.last_step:
            self.restart()
        self._history.add(step, value)

    def judge(self, least_for_leak: int = LEAST_FOR_LEAK) -> Judgment:
        """Return the current verdict, recomputed each time the history has grown by 1/32. `least_for_leak` is
        the number of readings required for the verdict "leak"."""
        history = self._history
        self.least_for_leak = least_for_leak
        if history.samples >= self._due:
            self._due = history.samples + max(_LEAST_NEW, history.samples // 32)
            self._judgment = self._judge()
        return self._judgment._replace(last_step=history.last_step)

    def _judge(self) -> Judgment:
        history = self._history
        if history.samples < LEAST_SAMPLES:
            return Judgment(self._state, history.first_step, history.last_step)
        is_rising = self._state in RISING
        blocks = history.blocks()
        returned = _returned(blocks)
        # Of a stretch that does not rise only the first one's figures are stated.
        tests = [
            _test(stretch, is_rising, returned)
            for number, stretch in enumerate(_stretches(blocks))
            if number == 0 or _may_rise(stretch, is_rising)
        ]
        if not tests:  # After a recent jump the remaining stretch is too short.
            self._state = LeakVerdict.STEADY if self._state is LeakVerdict.TOO_EARLY else self._state
            return Judgment(self._state, history.first_step, history.last_step)
        best = max(tests, key=lambda test: (test.grows, test.keeps_growing))
        full_since = _full_since(blocks, best.trend.slope) if best.grows else None
        self._state = self._next(tests)
        if self._state is LeakVerdict.LEAK and full_since is not None:
            self._state = LeakVerdict.WATCH
        is_enough = history.samples >= self.least_for_leak
        limit = _detection_limit(tests[0], returned) if is_enough else None
        begin = onset(_after_jump(blocks)) if self._state in RISING and best.grows else None
        return Judgment(
            self._state,
            best.since_step,
            history.last_step,
            best.trend,
            best.risen,
            limit,
            full_since,
            onset=begin,
        )

    def _next(self, tests: list[_StretchTest]) -> LeakVerdict:
        growing = [test for test in tests if test.grows]
        if not growing:
            return LeakVerdict.SAWTOOTH if tests[0].has_teeth else LeakVerdict.STEADY
        if any(test.keeps_growing for test in growing) and self._history.samples >= self.least_for_leak:
            return LeakVerdict.LEAK
        return self._state if self._state is LeakVerdict.LEAK else LeakVerdict.WATCH


RISING = frozenset({LeakVerdict.WATCH, LeakVerdict.LEAK})
CALM = frozenset({LeakVerdict.STEADY, LeakVerdict.SAWTOOTH})


def _stretches(blocks: Minima) -> list[Minima]:
    """Return the stretches to test: the whole history and its newer half, each from its lasting jump on."""
    stretches = [_after_jump(blocks), _after_jump(_newer_half(blocks))]
    return [stretch for stretch in stretches if len(stretch.values) >= BLOCKS]


def _newer_half(blocks: Minima) -> Minima:
    half = len(blocks.values) // 2
    return Minima(blocks.steps[half:], blocks.values[half:])


def _after_jump(blocks: Minima) -> Minima:
    """Return the part after the one jump that accounts for most of the rise (optimizer state, a copy of the
    weights); all blocks without such a jump. A jump lasts if later values never return to the level before
    it."""
    values = blocks.values
    jumps = _lasting_jumps(values)
    at = int(jumps.argmax())
    if jumps[at] <= JUMP * float(values[-1] - values[0]):
        return blocks
    return Minima(blocks.steps[at + 1 :], values[at + 1 :])


def _lasting_jumps(values: Floats) -> Floats:
    """Return, for each pair of neighbors, the minimum of all later values minus the maximum of all earlier
    ones; negative where there is no lasting jump."""
    lowest_after = np.minimum.accumulate(values[::-1])[::-1]
    jumps: Floats = lowest_after[1:] - np.maximum.accumulate(values)[:-1]
    return jumps


def _stairs(minima: Minima, slope: float) -> float:
    """Return the excess of the `STAIRS` largest lasting jumps over a rise at `slope`; 0 if a small part."""
    steps, values = minima
    beyond = _lasting_jumps(values) - max(slope, 0.0) * np.diff(steps)
    largest = float(np.sort(beyond)[-STAIRS:].clip(0).sum())
    return largest if largest > FEW_STAIRS * float(values[-1] - values[0]) else 0.0


def _test(blocks: Minima, is_rising: bool, returned: float) -> _StretchTest:
    """Test one stretch. `returned` is the largest rise in the history that was freed: a smaller rise may be
    freed as well, even if the stretch begins after the last such release."""
    steps, values = minima = coarse(blocks, BLOCKS)
    whole = trend(steps, values)
    fell = drawdown(values)
    spread = float(values.max() - values.min())
    falls_back = spread >= LEAST_RISE and fell >= RECOVERED * spread
    rises = _rises(whole, minima, _least_z(is_rising))
    stairs = _stairs(minima, whole.slope)
    may_return = whole.slope * float(steps[-1] - steps[0]) <= AGAIN * returned
    grows = rises and not falls_back and not may_return and not _has_leveled(minima, whole)
    later_blocks, keeps_growing = _newer_half(blocks), False
    if rises and not stairs and len(later_blocks.values) >= BLOCKS:
        later_minima = coarse(later_blocks, BLOCKS)
        later = trend(*later_minima)
        keeps_growing = (
            _rises(later, later_minima, SURE_Z)
            and later.slope >= STEADILY * whole.slope
            and min(whole.low, later.low) > 0
        )
        # If the rate itself drifts, the difference of the halves exceeds the scatter within one.
        whole = whole._replace(low=min(whole.low, later.slope), high=max(whole.high, later.slope))
    return _StretchTest(
        trend=whole,
        since_step=int(blocks.steps[0]),
        span=max(int(steps[-1] - steps[0]), 1),
        grows=grows,
        keeps_growing=keeps_growing,
        has_teeth=falls_back and _rises_mostly(values),
        fell=fell,
        risen=_risen(blocks, whole.slope),
        stairs=stairs,
    )


def _risen(blocks: Minima, slope: float) -> float:
    """Return by how much the blocks rose at `slope`. Memory that has been growing for a part of them only has
    risen by less: by no more than the blocks differ."""
    steps, values = blocks
    return min(slope * float(steps[-1] - steps[0]), float(values.max() - values.min()))


def _has_leveled(minima: Minima, whole: Trend) -> bool:
    last = trend(minima.steps[-_QUARTER:], minima.values[-_QUARTER:])
    return last.slope <= LEVELED * whole.slope and last.high < SLOWED * whole.slope


def _full_since(blocks: Minima, slope: float) -> int | None:
    """Return the first step of the last eighth if it does not grow, in contrast to the whole at `slope`."""
    steps, values = blocks
    begin = steps[-1] - (steps[-1] - steps[0]) / _EIGHTH
    first = min(int(np.searchsorted(steps, begin)), len(steps) - _LEAST_FULL)
    newest = trend(steps[first:], values[first:])
    expected = slope * float(steps[-1] - steps[first])
    is_clear = expected >= _NOISE_RISE * newest.residual
    return int(steps[first]) if is_clear and max(newest.slope, newest.high) < FULL * slope else None


def _may_rise(blocks: Minima, is_rising: bool) -> bool:
    """Return whether a stretch may rise, without the slope, which takes most of the time of its test."""
    return mann_kendall(coarse(blocks, BLOCKS).values) > _least_z(is_rising)


def _least_z(is_rising: bool) -> float:
    return DOUBTFUL_Z if is_rising else SURE_Z


def _returned(blocks: Minima) -> float:
    """Return the largest rise that was freed. Excluded are falls from an initially high level, and rises
    within one of the coarse blocks, such as an evaluation."""
    oldest = blocks.values[: len(blocks.values) % BLOCKS]
    values = np.concatenate([[oldest.min()] if len(oldest) else [], coarse(blocks, BLOCKS).values])
    up = values - np.minimum.accumulate(values)
    down = values - np.minimum.accumulate(values[::-1])[::-1]
    return float(np.minimum(up, down).max())


def _rises(fit: Trend, minima: Minima, least_z: float) -> bool:
    return fit.z > least_z and fit.slope * float(minima.steps[-1] - minima.steps[0]) >= LEAST_RISE


def _rises_mostly(values: Floats) -> bool:
    steps = np.sign(np.diff(values))
    return bool((steps > 0).sum() >= 2 * (steps < 0).sum())


def _detection_limit(test: _StretchTest, returned: float) -> float:
    """Return the slope whose rise is detectable in half the history: above `LEAST_RISE`, the noise, transient
    rises, rises that were freed before, and a few jumps."""
    noise = _NOISE_RISE * test.trend.residual
    rise = _TWICE * max(LEAST_RISE, noise, test.fell / RECOVERED, AGAIN * returned)
    return max(rise, test.stairs / FEW_STAIRS) / test.span

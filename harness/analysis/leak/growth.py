"""Judges whether one series of memory readings leaks, as it comes in.

The history since the start, or since the last change of settings, is reduced to 24 block minima: what is
freed now and then does not lift them. The series *grows* when Mann and Kendall's test is sure of it, the rise
is worth the name, it never came back and no single jump makes up most of it: then it is watched. It *leaks*
when its second half grows by itself, about as fast as the whole, and the rise is made of more than a few
stairs. Both the whole history and its newer half are looked at, so that neither a slow leak nor one that
began late is missed. A verdict is taken back when the last quarter has levelled off or the memory is given
back. How often that is right: docs/leaks.md.
"""

from math import isfinite
from typing import NamedTuple

import numpy as np

from harness.analysis.leak.history import History, Minima, coarse
from harness.analysis.leak.trend import Floats, Trend, drawdown, trend
from harness.records.memory import LeakVerdict

BLOCKS = 24
_QUARTER = BLOCKS // 4
LEAST_SAMPLES = 2 * BLOCKS
LEAST_FOR_LEAK = 96
"""Fewer are over within seconds, and much that is healthy rises at first."""

_LEAST_NEW = 4

SURE_Z = 3.29
"""Two-sided 0.1 %."""
DOUBTFUL_Z = 1.96
"""Once it grows, it does so until the test is less sure than this: one threshold would flicker."""
LEAST_RISE = float(2**20)
RECOVERED = 0.5
"""A fall by this share of the whole range is a recovery."""
AGAIN = 1.25
"""A rise of up to so many times what rose and was given back before may be given back again: a list that is
emptied after each epoch. Block minima miss up to a twelfth of a rise at either end."""
JUMP = 0.5
"""A lasting jump of more than this share of the rise is left out, with all before it."""
STAIRS = 4
FEW_STAIRS = 0.5
"""A rise of which so many lasting jumps make up more than this share, beyond what an even rise would have
given between the same steps, is watched and not yet called a leak: arenas and caches of libraries, each
filled once, look like that in the first hundred steps. Five equal stairs exceed it, six do not."""
STEADILY = 0.7
"""The slope of the second half over that of the whole, at the least, for a leak."""
LEVELLED = 0.4
SLOWED = 0.5
"""Levelled off: the last quarter's slope over the whole's is at most the one, its interval ends below the
other."""

_NOISE_RISE = 5.0
"""A rise of so many standard deviations of the block minima is found nearly always."""
_TWICE = 2.1
"""The rise must show in half the history; and a little more, as it is looked at only now and then."""


class Judgement(NamedTuple):
    """What is thought of a series at a moment, from `since_step` on. The figures are None while it is too
    early. `detection_limit` is the smallest slope that would have been called a leak by now."""

    verdict: LeakVerdict
    since_step: int
    last_step: int
    trend: Trend | None = None
    risen_bytes: float | None = None
    detection_limit: float | None = None


class _Look(NamedTuple):
    """What one look at a stretch of the history shows."""

    trend: Trend
    since_step: int
    span: int
    grows: bool
    """It rises and has not levelled off."""
    keeps_growing: bool
    """The second half of the stretch grows by itself, about as fast as the whole."""
    has_teeth: bool
    """It falls back, and rises more often than it falls: noise does both alike."""
    fell: float
    stairs: float
    """What its largest lasting jumps make up beyond an even rise, when too much for a leak; else 0."""


class GrowthJudge:
    """Takes the readings of one series in the order of their steps, and judges when asked."""

    def __init__(self) -> None:
        self._least_for_leak = LEAST_FOR_LEAK
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
        self._judgement = Judgement(LeakVerdict.TOO_EARLY, 0, 0)

    def add(self, step: int, value: float | None) -> None:
        """Take a reading. What is missing or not finite is left out; a step that is not newer starts anew."""
        if value is None or not isfinite(value):
            return
        if self._history.samples and step <= self._history.last_step:
            self.restart()
        self._history.add(step, value)

    def judge(self, least_for_leak: int = LEAST_FOR_LEAK) -> Judgement:
        """The verdict now. Worked out anew once the history is a thirty-second longer: the longer it is, the
        more rarely. `least_for_leak` is how many readings a leak needs before it is called one."""
        history = self._history
        self._least_for_leak = least_for_leak
        if history.samples >= self._due:
            self._due = history.samples + max(_LEAST_NEW, history.samples // 32)
            self._judgement = self._judge()
        return self._judgement._replace(last_step=history.last_step)

    def _judge(self) -> Judgement:
        history = self._history
        if history.samples < LEAST_SAMPLES:
            return Judgement(self._state, history.first_step, history.last_step)
        is_rising = self._state in _RISING
        blocks = history.blocks()
        returned = _returned(blocks)
        looks = [_look(stretch, is_rising, returned) for stretch in _stretches(blocks)]
        if not looks:  # A jump just now: what came after it is too short to be judged.
            self._state = LeakVerdict.STEADY if self._state is LeakVerdict.TOO_EARLY else self._state
            return Judgement(self._state, history.first_step, history.last_step)
        self._state = self._next(looks)
        told = max(looks, key=lambda look: (look.grows, look.keeps_growing))
        rise = told.trend.slope * told.span
        is_enough = history.samples >= self._least_for_leak
        limit = _detection_limit(looks[0], returned) if is_enough else None
        return Judgement(self._state, told.since_step, history.last_step, told.trend, rise, limit)

    def _next(self, looks: list[_Look]) -> LeakVerdict:
        growing = [look for look in looks if look.grows]
        if not growing:
            return LeakVerdict.SAWTOOTH if looks[0].has_teeth else LeakVerdict.STEADY
        if any(look.keeps_growing for look in growing) and self._history.samples >= self._least_for_leak:
            return LeakVerdict.LEAK
        return self._state if self._state is LeakVerdict.LEAK else LeakVerdict.WATCH


_RISING = frozenset({LeakVerdict.WATCH, LeakVerdict.LEAK})


def _stretches(blocks: Minima) -> list[Minima]:
    """What is looked at: the whole history and its newer half; of each, what comes after a lasting jump."""
    stretches = [_after_jump(blocks), _after_jump(_newer_half(blocks))]
    return [stretch for stretch in stretches if len(stretch.values) >= BLOCKS]


def _newer_half(blocks: Minima) -> Minima:
    half = len(blocks.values) // 2
    return Minima(blocks.steps[half:], blocks.values[half:])


def _after_jump(blocks: Minima) -> Minima:
    """What comes after the one jump that makes up most of the rise (optimizer state, a copy of the weights);
    all of it without such a jump. A jump lasts: never again is as little held as before it."""
    values = blocks.values
    jumps = _lasting_jumps(values)
    at = int(jumps.argmax())
    if jumps[at] <= JUMP * float(values[-1] - values[0]):
        return blocks
    return Minima(blocks.steps[at + 1 :], values[at + 1 :])


def _lasting_jumps(values: Floats) -> Floats:
    """By how much the least of all later values exceeds the most of all before, between each two neighbours;
    below zero where it does not."""
    lowest_after = np.minimum.accumulate(values[::-1])[::-1]
    jumps: Floats = lowest_after[1:] - np.maximum.accumulate(values)[:-1]
    return jumps


def _stairs(minima: Minima, slope: float) -> float:
    """How much the few largest lasting jumps exceed a rise at `slope`; 0 where that is no great part."""
    steps, values = minima
    beyond = _lasting_jumps(values) - max(slope, 0.0) * np.diff(steps)
    largest = float(np.sort(beyond)[-STAIRS:].clip(0).sum())
    return largest if largest > FEW_STAIRS * float(values[-1] - values[0]) else 0.0


def _look(blocks: Minima, is_rising: bool, returned: float) -> _Look:
    """`returned`: the most that was given back in all of the history. A rise of less may be given back as
    well, though a stretch that begins after the last time does not show it."""
    steps, values = minima = coarse(blocks, BLOCKS)
    whole = trend(steps, values)
    fell = drawdown(values)
    spread = float(values.max() - values.min())
    falls_back = spread >= LEAST_RISE and fell >= RECOVERED * spread
    last = trend(steps[-_QUARTER:], values[-_QUARTER:])
    has_levelled = last.slope <= LEVELLED * whole.slope and last.high < SLOWED * whole.slope
    rises = _rises(whole, minima, DOUBTFUL_Z if is_rising else SURE_Z)
    stairs = _stairs(minima, whole.slope)
    may_return = whole.slope * float(steps[-1] - steps[0]) <= AGAIN * returned
    later_blocks, keeps_growing = _newer_half(blocks), False
    if rises and not stairs and len(later_blocks.values) >= BLOCKS:
        later_minima = coarse(later_blocks, BLOCKS)
        later = trend(*later_minima)
        keeps_growing = (
            _rises(later, later_minima, SURE_Z)
            and later.slope >= STEADILY * whole.slope
            and min(whole.low, later.low) > 0
        )
        # Where the rate itself drifts, the halves tell more of what is known than the scatter within one.
        whole = whole._replace(low=min(whole.low, later.slope), high=max(whole.high, later.slope))
    return _Look(
        trend=whole,
        since_step=int(blocks.steps[0]),
        span=max(int(steps[-1] - steps[0]), 1),
        grows=rises and not falls_back and not may_return and not has_levelled,
        keeps_growing=keeps_growing,
        has_teeth=falls_back and _rises_mostly(values),
        fell=fell,
        stairs=stairs,
    )


def _returned(blocks: Minima) -> float:
    """The largest rise that was given back: what was high from the beginning and fell is none, nor what came
    and went within one of the larger blocks, as an evaluation does."""
    oldest = blocks.values[: len(blocks.values) % BLOCKS]
    values = np.concatenate([[oldest.min()] if len(oldest) else [], coarse(blocks, BLOCKS).values])
    up = values - np.minimum.accumulate(values)
    down = values - np.minimum.accumulate(values[::-1])[::-1]
    return float(np.minimum(up, down).max())


def _rises(found: Trend, minima: Minima, least_z: float) -> bool:
    return found.z > least_z and found.slope * float(minima.steps[-1] - minima.steps[0]) >= LEAST_RISE


def _rises_mostly(values: Floats) -> bool:
    steps = np.sign(np.diff(values))
    return bool((steps > 0).sum() >= 2 * (steps < 0).sum())


def _detection_limit(look: _Look, returned: float) -> float:
    """As large as a rise must be to show in half the history: worth the name, above the noise, above what
    falls back now and then or was given back before, and above a few stairs."""
    noise = _NOISE_RISE * look.trend.residual
    rise = _TWICE * max(LEAST_RISE, noise, look.fell / RECOVERED, AGAIN * returned)
    return max(rise, look.stairs / FEW_STAIRS) / look.span

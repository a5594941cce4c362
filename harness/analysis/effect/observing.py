"""Comparison of step times, throughput and peak memory around a change of settings."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from harness import words
from harness.analysis.effect.peaks import compare_peaks
from harness.analysis.effect.ranks import NONE, ONE, are_apart, low_sample, low_step, samples_per_time
from harness.analysis.effect.uncertainty import (
    Estimate,
    difference,
    low_share,
    sample_rate,
    step_quantile,
    widening,
)
from harness.analysis.effect.windows import (
    LENGTHS_S,
    MIN_STEPS,
    Chains,
    StepWindow,
    chains,
    longest_pair,
    stretches,
)
from harness.records.step_time import StepTime

# A ratio that differs from 1 by less than this is not a visible change.
PRACTICAL = 0.01

# Minimum half-width of an interval: the same work varies by this much from one minute to the next, because of
# clocks, caches and the location of its memory, before a run's history can show it.
LEAST_REACH = 0.02

# Student's t for 6 degrees of freedom: 98.5 % for the step, 99.8 % for the throughput, which other processes
# affect more. A verdict names intervals that exclude 1, so the two error rates sum to less than 5 %.
STEP_ERRORS = 3.372
RATE_ERRORS = 5.208

# If more than this share of neighboring windows without a change differ by as much, the run varies by itself.
# Those of a short segment are half as long as the windows compared: a single pair is no evidence.
_USUAL_SHARE = 0.3

# The quantile of times at equal machine speed: a process that takes the core in turns delays more than half
# of the steps, but seldom the short reference work.
_SPEED_SHARE = 0.4

# Names of the compared step time.
UNDISTURBED, AT_EQUAL_SPEED = "undisturbed step", "step at equal machine speed"

# Wider intervals are uninformative.
_TOO_NOISY = 0.5


class FigureChange(NamedTuple):
    """One figure before and after, the ratio after/before and its interval."""

    before: float
    after: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """After divided by before."""
        return self.after / self.before

    @property
    def is_visible(self) -> bool:
        """True if the figure differs."""
        return (self.low > 1 or self.high < 1) and abs(self.ratio - 1) >= PRACTICAL

    @property
    def width(self) -> float:
        """The width of the interval, as a difference of logarithms."""
        return math.log(self.high / self.low)

    @property
    def resolution(self) -> float:
        """The smallest detectable change, as a share."""
        return max(abs(self.high - 1), abs(self.low - 1))


class ObservedChange(NamedTuple):
    """The differences around a change; None while there is too little data.

    `step_ns` is the undisturbed step, a low quantile; `sample_ns` the same per sample if the batch size
    changed, else None. `samples_per_s` is None where the samples of some steps are unknown. `seconds` is the
    length of the windows, 0 without windows. `left_out` is the number of excluded (flagged) steps.
    """

    steps_before: int
    steps_after: int
    left_out: int
    seconds: float
    step_ns: FigureChange | None
    sample_ns: FigureChange | None
    samples_per_s: FigureChange | None
    peak_bytes: FigureChange | None
    verdict: str
    is_at_equal_speed: bool = False

    @property
    def step_name(self) -> str:
        """The name of the figure `step_ns`."""
        return AT_EQUAL_SPEED if self.is_at_equal_speed else UNDISTURBED

    @property
    def has_windows(self) -> bool:
        """True if there is enough data for a comparison."""
        return self.seconds > 0


def missing_time(before_s: float, after_s: float, is_closed: bool) -> str | None:
    """Return why there is no comparison yet, or ever (`is_closed`: no step will be added); None if both sides
    have enough seconds for a window."""
    least_s = LENGTHS_S[0]
    # A change is later than the end of the step before it, which may be the only one so far.
    before_s, after_s = max(0.0, before_s), max(0.0, after_s)
    if before_s < least_s:
        return f"Not compared: {before_s:.0f} s before the change, {least_s:.0f} s are needed."
    if after_s >= least_s:
        return None
    if is_closed:
        return f"Not compared: {after_s:.0f} s after the change, {least_s:.0f} s are needed."
    return f"Measuring: {after_s:.0f} of {least_s:.0f} s after the change."


def observe(
    steps: Sequence[StepTime],
    version: int,
    is_closed: bool = False,
    at_equal_speed: Sequence[StepTime] = (),
) -> ObservedChange:
    """Compare the steps under `version` of the settings with those under the previous version.

    `steps` are in order: those of both versions, preceded by as much of the run's history as there is,
    flagged steps included; every n-th of the steady-state steps is sufficient. `is_closed`: none will be
    added. `at_equal_speed` are some of them with times scaled to one speed of the machine
    (`harness.analysis.effect.reference`); they are compared, unless they are too noisy.
    """
    by_version = stretches(steps)
    before, after = _sides(by_version, version)
    pair = longest_pair(before, after)
    if pair is None:
        return _unknown(before, after, is_closed)
    before, after = pair
    first, last = before.steps[0].step, after.steps[-1].step
    left_out = sum(1 for step in steps if step.flags and first <= step.step <= last)
    history = chains(by_version.values(), before.seconds)
    compared, is_at_equal_speed = _undisturbed(before.usual(), after.usual(), _usual(history)), False
    scaled = stretches(at_equal_speed)
    scaled_pair = longest_pair(*_sides(scaled, version))
    if scaled_pair is not None:
        scaled_before, scaled_after = (window.usual() for window in scaled_pair)
        scaled_history = _usual(chains(scaled.values(), before.seconds))
        at_one_speed = _at_equal_speed(scaled_before, scaled_after, scaled_history)
        compared, is_at_equal_speed = _more_precise(compared, at_one_speed)
    effects = _effects(before, after, history, compared)
    counted = before.step_count, after.step_count, left_out
    verdict = _verdict(effects, before.seconds, is_at_equal_speed)
    return ObservedChange(*counted, before.seconds, *effects, verdict, is_at_equal_speed)


def _usual(history: Chains) -> Chains:
    return [[window.usual() for window in chain] for chain in history]


def _sides(by_version: Mapping[int, StepWindow], version: int) -> tuple[StepWindow, StepWindow]:
    """The steps under the version before `version`, and those under it."""
    previous = max((number for number in by_version if number < version), default=None)
    before = by_version[previous] if previous is not None else StepWindow([])
    return before, by_version.get(version, StepWindow([]))


class _Effects(NamedTuple):
    step_ns: FigureChange
    sample_ns: FigureChange | None
    samples_per_s: FigureChange | None
    peak_bytes: FigureChange | None


class _StepEffects(NamedTuple):
    step_ns: FigureChange
    sample_ns: FigureChange | None


def _undisturbed(before: StepWindow, after: StepWindow, history: Chains) -> _StepEffects:
    """Compare the undisturbed step, a low quantile."""
    share = low_share(min(len(before.steps), len(after.steps)))
    quantile = partial(step_quantile, share=share)
    step_ns = _compared(before, after, history, quantile, STEP_ERRORS)
    floor = math.exp(quantile(after).floor - quantile(before).floor)
    per_sample = _per_sample(step_ns, floor, before, after, share)
    if not (_is_shared(step_ns, floor) and are_apart(before, after, partial(low_step, share=share), ONE)):
        step_ns = _including_one(step_ns, floor)
    return _StepEffects(step_ns, per_sample)


def _at_equal_speed(before: StepWindow, after: StepWindow, history: Chains) -> _StepEffects:
    """Compare step times at equal machine speed, near the median."""
    step_ns = _compared(before, after, history, partial(step_quantile, share=_SPEED_SHARE), STEP_ERRORS)
    per_sample = _per_sample(step_ns, step_ns.ratio, before, after, _SPEED_SHARE)
    if not are_apart(before, after, partial(low_step, share=_SPEED_SHARE), ONE):
        step_ns = _including_one(step_ns)
    return _StepEffects(step_ns, per_sample)


def _more_precise(undisturbed: _StepEffects, at_equal_speed: _StepEffects) -> tuple[_StepEffects, bool]:
    """Return the figure with the narrower interval, and whether that is the one at equal machine speed.

    Intervals that exclude each other show that the speed of the machine changed. Then it is the one at equal
    speed, and its interval includes the other one, and no change.
    """
    one, other = undisturbed.step_ns, at_equal_speed.step_ns
    if one.high >= other.low and other.high >= one.low:
        return (at_equal_speed, True) if other.width < one.width else (undisturbed, False)
    per_sample = at_equal_speed.sample_ns
    step_ns = _including_one(other, one.low, one.high)
    return _StepEffects(step_ns, per_sample and _including_one(per_sample)), True


def _effects(before: StepWindow, after: StepWindow, history: Chains, compared: _StepEffects) -> _Effects:
    step_ns, per_sample = compared
    return _Effects(step_ns, per_sample, _rates(before, after, history), _peaks(before, after, history))


def _rates(before: StepWindow, after: StepWindow, history: Chains) -> FigureChange | None:
    """Compare the samples per second; None where the samples of some steps are unknown."""
    if not (before.has_samples and after.has_samples):
        return None
    history = [chain for chain in history if all(window.has_samples for window in chain)]
    rate = _compared(before, after, history, sample_rate, RATE_ERRORS)
    if not are_apart(before, after, samples_per_time, NONE):
        rate = _including_one(rate)
    return rate._replace(before=rate.before * 1e9, after=rate.after * 1e9)


def _unknown(before: StepWindow, after: StepWindow, is_closed: bool) -> ObservedChange:
    verdict = missing_time(before.seconds, after.seconds, is_closed)
    if verdict is None:
        side, window = ("after", after) if len(before.steps) >= MIN_STEPS else ("before", before)
        steps = words.plural(len(window.steps), "step")
        verdict = f"Not compared: {steps} {side} the change, {MIN_STEPS} are needed."
        if window is after and not is_closed:
            verdict = f"Measuring: {len(after.steps)} of {MIN_STEPS} steps after the change."
    counted = before.step_count, after.step_count
    return ObservedChange(*counted, 0, 0.0, None, None, None, None, verdict)


def _compared(
    before: StepWindow,
    after: StepWindow,
    history: Chains,
    statistic: Callable[[StepWindow], Estimate],
    errors: float,
) -> FigureChange:
    """Return the statistic on both sides, with the interval widened according to this run's history."""
    old, new = statistic(before), statistic(after)
    pairs = [pair for chain in history for pair in pairwise(map(statistic, chain))]
    factor = widening(pairs, errors, LEAST_REACH)
    log_ratio = difference(old, new, errors * factor, LEAST_REACH * factor)
    value = math.exp(old.value)
    effect = FigureChange(
        value, value * math.exp(log_ratio.value), math.exp(log_ratio.low), math.exp(log_ratio.high)
    )
    as_large = sum(abs(other.value - one.value) >= abs(log_ratio.value) for one, other in pairs)
    return _including_one(effect) if as_large > _USUAL_SHARE * len(pairs) else effect


def _is_shared(effect: FigureChange, floor: float) -> bool:
    """Return whether the fastest steps, with the ratio `floor`, have at least half of the effect."""
    return math.log(floor) * math.copysign(1, effect.ratio - 1) >= abs(math.log(effect.ratio)) / 2


def _including_one(effect: FigureChange, *ratios: float) -> FigureChange:
    """Extend the interval of the effect to include 1 (no change) and `ratios`."""
    return effect._replace(low=min(effect.low, 1.0, *ratios), high=max(effect.high, 1.0, *ratios))


def _per_sample(
    step_ns: FigureChange, floor: float, before: StepWindow, after: StepWindow, share: float
) -> FigureChange | None:
    """Return the undisturbed time per sample; None if the number of samples per step is unchanged, or
    unknown."""
    old, new = before.steps[-1].samples, after.steps[-1].samples
    if old == new or not (before.has_samples and after.has_samples):
        return None
    factor = old / new
    effect = FigureChange(
        step_ns.before / old, step_ns.after / new, step_ns.low * factor, step_ns.high * factor
    )
    if _is_shared(effect, floor * factor) and are_apart(before, after, partial(low_sample, share=share), ONE):
        return effect
    return _including_one(effect, floor * factor)


def _peaks(before: StepWindow, after: StepWindow, history: Chains) -> FigureChange | None:
    comparison = compare_peaks(before, after, history)
    if comparison is None:
        return None
    peak_bytes, change = comparison
    return FigureChange(
        peak_bytes, peak_bytes * math.exp(change.value), math.exp(change.low), math.exp(change.high)
    )


def _verdict(effects: _Effects, seconds: float, is_at_equal_speed: bool) -> str:
    named = (
        (AT_EQUAL_SPEED if is_at_equal_speed else UNDISTURBED, effects.step_ns, words.fine_duration),
        ("time per sample", effects.sample_ns, words.fine_duration),
        ("throughput", effects.samples_per_s, words.fine_rate),
        ("peak memory", effects.peak_bytes, words.size),
    )
    parts = [
        f"{name} {text(effect.before)} → {text(effect.after)} ({words.relative(effect.ratio - 1)}, "
        f"{words.relative(effect.low - 1)} to {words.relative(effect.high - 1)})"
        for name, effect, text in named
        if effect is not None and effect.is_visible
    ]
    compared = f"over {seconds:.0f} s on each side"
    if parts:
        return f"Observed {compared}: " + "; ".join(parts) + "."
    resolution = effects.step_ns.resolution
    start = "Too noisy to compare" if resolution >= _TOO_NOISY else "No change observed"
    return f"{start} {compared}: less than {_limit(resolution)} in step time is not detectable here."


def _limit(share: float) -> str:
    """Return a share as text, rounded up, so that the stated resolution is never too small."""
    if share >= 1:
        return f"a factor of {math.ceil(1 + share):,}"
    pct = 100 * share
    digits = 1 if pct < 10 else 0
    return f"±{math.ceil(pct * 10**digits) / 10**digits:,.{digits}f} %"

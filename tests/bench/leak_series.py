"""Seeded series of memory readings, with and without a leak: what healthy and leaking runs look like.

Each family is a level with what belongs to it (noise, teeth, spikes, jumps, a cache that fills); the leaking
half adds bytes that never come back.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from harness.analysis.leak.growth import GrowthJudge, Judgment
from harness.analysis.leak.trend import Floats
from harness.records.memory import LeakVerdict

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
_WARM_UP_STEPS = 5
_JUDGE_EVERY = 16
_LENGTHS = (300, 600, 1_500, 4_000, 12_000)

Chance = np.random.Generator
Family = Callable[[Chance, int], Floats]


class Case(NamedTuple):
    """One series. `leaked` is how many of its bytes have leaked by each step, from `onset` on about `slope`
    a step; 0 without a leak."""

    name: str
    values: Floats
    leaked: Floats
    slope: float
    onset: int


def _flat(chance: Chance, n: int) -> Floats:
    return np.zeros(n)


def _noise(chance: Chance, n: int) -> Floats:
    return chance.normal(0, _log_uniform(chance, 4 * KIB, 8 * MIB), n)


def _heavy_noise(chance: Chance, n: int) -> Floats:
    return chance.standard_t(2.5, n) * _log_uniform(chance, 4 * KIB, 2 * MIB)


def _slow_noise(chance: Chance, n: int) -> Floats:
    """Noise that remembers, as RSS does: each sample is near the one before."""
    memory = np.exp(-1 / chance.uniform(3, max(4, n / 60)))
    shocks = chance.normal(0, _log_uniform(chance, 16 * KIB, 4 * MIB), n)
    values = np.empty(n)
    now = 0.0
    for i in range(n):
        now = memory * now + shocks[i] * np.sqrt(1 - memory**2)
        values[i] = now
    return values


def _sawtooth(chance: Chance, n: int) -> Floats:
    """Rises until Python's collector, or a buffer that is written out, gives all of it back."""
    period = int(chance.integers(10, max(11, n // 6)))
    height = _log_uniform(chance, 1 * MIB, 400 * MIB)
    shift = int(chance.integers(0, period))
    return np.asarray((np.arange(n) + shift) % period * (height / period), dtype=np.float64)


def _spikes(chance: Chance, n: int) -> Floats:
    """A checkpoint or an evaluation every so many steps takes more for a while."""
    every = int(chance.integers(20, max(21, n // 5)))
    length = int(chance.integers(1, max(2, every // 3)))
    height = _log_uniform(chance, 8 * MIB, 2 * GIB)
    return np.where((np.arange(n) + chance.integers(0, every)) % every < length, height, 0.0)


def _cache_fill(chance: Chance, n: int) -> Floats:
    """A cache that fills evenly and is then full."""
    full = int(n * chance.uniform(0.1, 0.5))
    return np.minimum(np.arange(n) / full, 1.0) * _log_uniform(chance, 4 * MIB, 4 * GIB)


def _saturating(chance: Chance, n: int) -> Floats:
    """A cache that fills ever more slowly, as one of values drawn at random does."""
    scale = n * chance.uniform(0.04, 0.15)
    return -np.expm1(-np.arange(n) / scale) * _log_uniform(chance, 4 * MIB, 1 * GIB)


def _curriculum(chance: Chance, n: int) -> Floats:
    """Inputs grow in stages until they have their full size."""
    stages, end = int(chance.integers(3, 9)), n * chance.uniform(0.25, 0.6)
    stage = np.minimum(np.arange(n) * stages / end, stages).astype(int)
    return stage * _log_uniform(chance, 1 * MIB, 64 * MIB)


def _variable_length(chance: Chance, n: int) -> Floats:
    """The batch in hand differs in length from step to step."""
    return chance.beta(2, 5, n) * _log_uniform(chance, 1 * MIB, 256 * MIB)


def _variable_batch(chance: Chance, n: int) -> Floats:
    """Batches of several sizes, the last of each pass smaller."""
    each = _log_uniform(chance, 1 * MIB, 64 * MIB)
    per_pass = int(chance.integers(7, 90))
    sizes = chance.choice([0.5, 0.75, 1.0], n)
    return np.where(np.arange(n) % per_pass == per_pass - 1, 0.3, sizes) * each


def _records(chance: Chance, n: int) -> Floats:
    """Return what an allocator holds grows to the largest request so far."""
    return np.maximum.accumulate(_variable_length(chance, n))


def _jump(chance: Chance, n: int) -> Floats:
    """Optimizer state, or an average of the weights, is made once."""
    at = int(n * chance.uniform(0.02, 0.8))
    return np.where(np.arange(n) >= at, _log_uniform(chance, 8 * MIB, 4 * GIB), 0.0)


def _two_jumps(chance: Chance, n: int) -> Floats:
    return _jump(chance, n) + _jump(chance, n)


FAMILIES: Mapping[str, Family] = {
    "flat": _flat,
    "noise": _noise,
    "heavy noise": _heavy_noise,
    "slow noise": _slow_noise,
    "sawtooth": _sawtooth,
    "spikes": _spikes,
    "cache fill": _cache_fill,
    "saturating": _saturating,
    "curriculum": _curriculum,
    "variable length": _variable_length,
    "variable batch": _variable_batch,
    "records": _records,
    "jump": _jump,
    "two jumps": _two_jumps,
}


def _log_uniform(chance: Chance, low: float, high: float) -> float:
    return float(np.exp(chance.uniform(np.log(low), np.log(high))))


def _leaked(chance: Chance, n: int) -> tuple[Floats, float, int]:
    """Return what has leaked by each step, how fast, and from which step on. The rate is even, varies from
    step to step, or comes in lumps."""
    slope = _log_uniform(chance, 1 * KIB, 10 * MIB)
    onset = int(n * chance.choice([0.0, 0.0, 0.0, chance.uniform(0.05, 0.4)]))
    steps = np.arange(n)
    kind = chance.integers(3)
    if kind == 0:
        grown = np.maximum(steps - onset, 0) * slope
    elif kind == 1:
        grown = np.cumsum(np.where(steps > onset, chance.gamma(1.0, slope, n), 0.0))
    else:
        lump = int(chance.integers(2, max(3, n // 40)))
        grown = np.maximum(steps - onset, 0) // lump * lump * slope
    return grown, slope, onset


def cases(count: int, seed: int) -> Iterator[Case]:
    """So many series, every other one with a leak, through all families in turn."""
    names = list(FAMILIES)
    for number in range(count):
        chance = np.random.default_rng([seed, number])
        name, leaks = names[number // 2 % len(names)], number % 2 == 1
        n = int(chance.choice(_LENGTHS))
        base = _log_uniform(chance, 32 * MIB, 40 * GIB)
        values = base + FAMILIES[name](chance, n) + chance.normal(0, chance.choice([0.0, 16 * KIB]), n)
        grown, slope, onset = np.zeros(n), 0.0, 0
        if leaks:
            grown, slope, onset = _leaked(chance, n)
            values = values + grown
        yield Case(name, np.maximum(values, 0.0).round(), grown, slope, onset)


class Outcome(NamedTuple):
    """Verdicts of the detector on one series: at its end, and when it first said leak."""

    case: Case
    last: Judgment
    called_at: int | None

    @property
    def leaks(self) -> bool:
        """Return whether it truly leaks."""
        return self.case.slope > 0

    @property
    def is_called(self) -> bool:
        """Return whether it is called a leak at its end."""
        return self.last.verdict is LeakVerdict.LEAK

    @property
    def is_above_limit(self) -> bool:
        """Return whether it leaks more than the detector's own limit at the end."""
        return self.last.detection_limit is not None and self.case.slope > self.last.detection_limit


def judged(case: Case) -> Outcome:
    """Feed one series, looking now and then as a run does."""
    judge, called_at = GrowthJudge(), None
    for step, value in enumerate(case.values.tolist(), 1):
        if step <= _WARM_UP_STEPS:
            continue
        judge.add(step, value)
        if step % _JUDGE_EVERY == 0 and called_at is None and judge.judge().verdict is LeakVerdict.LEAK:
            called_at = step
        elif step % _JUDGE_EVERY == 0:
            judge.judge()
    return Outcome(case, judge.judge(), called_at)

"""Test what must hold of the leak detector for any series."""

import math
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.leak.growth import GrowthJudge, Judgment
from harness.analysis.leak.trend import drawdown, trend
from harness.records.memory import LeakVerdict
from tests.examples import examples

MIB = 2**20
levels = st.integers(0, 2**42)
seeds = st.integers(0, 2**32 - 1)
lengths = st.integers(1, 600)
few = examples(0.4)


def judged(values: list[float | None]) -> Judgment:
    judge = GrowthJudge()
    for step, value in enumerate(values, 1):
        judge.add(step, value)
    return judge.judge()


def a_leak(seed: int, length: int) -> list[float]:
    chance = np.random.default_rng(seed)
    noise = chance.normal(0, MIB, length)
    return [float(round(value)) for value in np.arange(length) * chance.uniform(0, 4 * MIB) + noise]


@few
@given(levels, lengths)
def test_what_never_changes_never_leaks(level: int, length: int) -> None:
    judgment = judged([float(level)] * length)
    assert judgment.verdict in (LeakVerdict.STEADY, LeakVerdict.TOO_EARLY)
    assert judgment.trend is None or judgment.trend.slope == 0


@few
@given(levels, st.lists(st.integers(0, MIB - 1), min_size=1, max_size=400))
def test_what_stays_within_a_mebibyte_never_leaks(level: int, noise: list[int]) -> None:
    assert judged([float(level + part) for part in noise]).verdict not in (
        LeakVerdict.WATCH,
        LeakVerdict.LEAK,
    )


@few
@given(seeds, lengths, levels)
def test_a_constant_added_changes_nothing(seed: int, length: int, level: int) -> None:
    values = a_leak(seed, length)
    assert judged([value + level for value in values])[:3] == judged(list(values))[:3]


@few
@given(seeds, st.integers(100, 600))
def test_what_falls_never_leaks(seed: int, length: int) -> None:
    values = [-value for value in a_leak(seed, length)]
    assert judged(list(values)).verdict is not LeakVerdict.LEAK


@few
@given(seeds, st.integers(200, 600))
def test_a_leak_in_another_order_is_no_leak(seed: int, length: int) -> None:
    values = [step * 1.0 * MIB for step in range(length)]
    random.Random(seed).shuffle(values)
    assert judged(list(values)).verdict is not LeakVerdict.LEAK


@few
@given(seeds, st.integers(200, 400), st.floats(0.0, 0.5))
def test_gaps_do_not_matter(seed: int, length: int, share: float) -> None:
    chance = random.Random(seed)
    values: list[float | None] = [
        chance.choice([None, math.nan, math.inf]) if chance.random() < share else 100.0 * MIB
        for _ in range(length)
    ]
    assert judged(values).verdict in (LeakVerdict.STEADY, LeakVerdict.TOO_EARLY)


@few
@given(st.lists(st.integers(0, 3), min_size=2, max_size=60))
def test_ties_never_make_a_trend_surer_than_an_order_without_them(values: list[int]) -> None:
    steps = np.arange(len(values), dtype=float)
    result = trend(steps, np.array(values, dtype=float))
    strict = trend(steps, steps)
    assert abs(result.z) <= strict.z + 1e-9
    assert result.low <= result.slope <= result.high


@few
@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=60))
def test_a_series_upside_down_has_the_opposite_trend(values: list[float]) -> None:
    steps = np.arange(len(values), dtype=float)
    up, down = trend(steps, np.array(values)), trend(steps, -np.array(values))
    assert math.isclose(up.z, -down.z, abs_tol=1e-9)
    assert math.isclose(up.slope, -down.slope, rel_tol=1e-9, abs_tol=1e-3)


@few
@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60))
def test_nothing_falls_further_than_its_range(values: list[float]) -> None:
    assert 0 <= drawdown(np.array(values)) <= max(values) - min(values)

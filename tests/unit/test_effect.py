"""What could be seen to differ around a change, on simulated steps with known answers."""

import math
import random
from collections.abc import Sequence

import pytest

from harness.analysis.effect import MIN_STEPS, WINDOW_STEPS, observe
from harness.records import StepFlag, StepRow
from tests.store_factories import a_step

MS = 1_000_000


def some_steps(
    durations_ns: Sequence[float], first: int = 1, samples: int = 32, peak_bytes: int | None = 15 << 20
) -> list[StepRow]:
    return [
        a_step(first + number)._replace(
            step_ns=round(duration_ns), samples=samples, peak_allocated_bytes=peak_bytes
        )
        for number, duration_ns in enumerate(durations_ns)
    ]


def noise(
    rng: random.Random,
    steps: int,
    level_ns: float = 2 * MS,
    spread: float = 0.03,
    memory: float = 0.0,
    drift: float = 0.0,
) -> list[float]:
    """Log-normal step times: AR(1) with coefficient `memory`, and a drift of `drift` over the series; now and
    then a step that takes three times as long."""
    state, durations = 0.0, []
    for number in range(steps):
        state = memory * state + rng.gauss(0, spread) * math.sqrt(1 - memory**2)
        outlier = 3 if rng.random() < 0.01 else 1
        durations.append(level_ns * outlier * math.exp(state + drift * number / steps))
    return durations


@pytest.mark.parametrize(("memory", "drift"), [(0.0, 0.0), (0.5, 0.0), (0.9, 0.0), (0.0, 0.005), (0.5, 0.01)])
def test_a_change_that_did_nothing_is_called_no_visible_change(memory: float, drift: float) -> None:
    called_visible = 0
    for seed in range(200):
        durations = noise(random.Random(seed), 2 * WINDOW_STEPS, memory=memory, drift=drift)
        steps = some_steps(durations)
        change = observe(steps[:WINDOW_STEPS], steps[WINDOW_STEPS:])
        called_visible += not change.verdict.startswith("No visible change")
    assert called_visible <= 20


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_tenth_more_or_less_is_seen(factor: float) -> None:
    seen = 0
    for seed in range(50):
        rng = random.Random(seed)
        before = some_steps(noise(rng, 200, memory=0.5))
        after = some_steps(noise(rng, 200, 2 * MS * factor, memory=0.5), first=201)
        change = observe(before, after)
        assert change.step_ns is not None
        seen += change.step_ns.is_visible
        assert change.step_ns.ratio == pytest.approx(factor, rel=0.05)
    assert seen >= 48


def test_the_verdict_names_what_moved_with_both_values() -> None:
    before = some_steps([2 * MS] * 100, samples=32)
    after = some_steps([3 * MS] * 100, samples=96, peak_bytes=30 << 20)
    change = observe(before, after)
    assert change.verdict == (
        "Observed: step time 2.0 ms → 3.0 ms (+50%); throughput 16,000 samples/s → 32,000 samples/s (+100%); "
        "peak memory 15.0 MiB → 30.0 MiB (+100%)."
    )
    assert (change.steps_before, change.steps_after) == (100, 100)


def test_a_larger_batch_that_takes_as_much_longer_leaves_the_samples_a_second() -> None:
    before = some_steps([2 * MS] * 50, samples=32)
    after = some_steps([4 * MS] * 50, samples=64)
    change = observe(before, after)
    assert change.step_ns is not None
    assert change.samples_per_s is not None
    assert change.step_ns.is_visible
    assert not change.samples_per_s.is_visible
    assert "throughput" not in change.verdict


def test_a_difference_below_a_hundredth_is_none_that_matters() -> None:
    change = observe(some_steps([1_000_000] * 50), some_steps([1_009_000] * 50))
    assert change.verdict == "No visible change in step time, samples/s or peak memory."


@pytest.mark.parametrize(("before", "after"), [(MIN_STEPS, MIN_STEPS - 1), (MIN_STEPS, 0)])
def test_too_few_steps_after_it_is_too_early(before: int, after: int) -> None:
    change = observe(some_steps([1.0 * MS] * before), some_steps([1.0 * MS] * after))
    assert change.verdict == f"Too early to say: {after} of {MIN_STEPS} settled steps."
    assert change.step_ns is change.samples_per_s is change.peak_bytes is None


def test_too_few_steps_before_it_says_so() -> None:
    change = observe(some_steps([1.0 * MS] * 3), some_steps([1.0 * MS] * 500))
    assert change.verdict == f"Too few steps before the change to compare (3 of {MIN_STEPS})."


def test_memory_that_was_not_measured_is_left_out_and_the_rest_compared() -> None:
    before = some_steps([1.0 * MS] * 50, peak_bytes=None)
    after = some_steps([2.0 * MS] * 50, peak_bytes=None)
    change = observe(before, after)
    assert change.peak_bytes is None
    assert change.step_ns is not None
    assert change.step_ns.is_visible


def test_memory_measured_now_and_then_is_compared_where_it_was() -> None:
    rows = [
        row if row.step % 2 else row._replace(peak_allocated_bytes=None)
        for row in some_steps([1.0 * MS] * 100)
    ]
    change = observe(rows[:50], rows[50:])
    assert change.peak_bytes is not None
    assert change.peak_bytes.ratio == 1.0


def test_a_peak_of_zero_does_not_break_it() -> None:
    change = observe(some_steps([1.0 * MS] * 50, peak_bytes=0), some_steps([1.0 * MS] * 50, peak_bytes=0))
    assert change.peak_bytes is None
    assert change.verdict.startswith("No visible change")


def test_flagged_steps_are_left_out_and_counted() -> None:
    before = some_steps([1.0 * MS] * 50)
    after = some_steps([9.0 * MS] * 5 + [1.0 * MS] * 50, first=51)
    after = [row._replace(flags=int(StepFlag.TRANSITION)) if row.step <= 55 else row for row in after]
    change = observe(before, after)
    assert change.left_out == 5
    assert change.steps_after == 50
    assert change.verdict.startswith("No visible change")


def test_only_the_steps_next_to_the_change_are_looked_at() -> None:
    before = some_steps([5.0 * MS] * 1000 + [1.0 * MS] * WINDOW_STEPS)
    after = some_steps([1.0 * MS] * WINDOW_STEPS + [5.0 * MS] * 1000, first=2000)
    change = observe(before, after)
    assert change.steps_before == change.steps_after == WINDOW_STEPS
    assert change.verdict.startswith("No visible change")

"""Test what differs around a change, on simulated steps with known answers."""

import random

import pytest

from harness.analysis.effect import LENGTHS_S, MIN_STEPS, observe
from harness.analysis.effect.reference import at_equal_speed
from harness.analysis.effect.windows import stretches
from harness.records.run import StepFlag
from harness.records.step_time import StepTime
from tests.effect_factories import MS, noise, some_times, with_other_process

TEN_S = 260
"""Steps of 40 ms, somewhat more than a window needs."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "drift"),
    [
        (0.0, 0.0),
        pytest.param(0.5, 0.0, marks=pytest.mark.long),
        pytest.param(0.9, 0.0, marks=pytest.mark.long),
        pytest.param(0.0, 0.005, marks=pytest.mark.long),
        (0.5, 0.01),
    ],
)
def test_a_change_that_did_nothing_is_called_no_change(memory: float, drift: float) -> None:
    called = 0
    for seed in range(60):
        durations = noise(random.Random(seed), 2 * TEN_S, memory=memory, drift=drift)
        change = observe(some_times(durations[:TEN_S], durations[TEN_S:]), 2)
        assert change.step_ns is not None
        called += not change.verdict.startswith("No change observed")
    assert called <= 3


@pytest.mark.long
def test_a_change_that_did_nothing_is_called_no_change_in_a_run_with_a_history() -> None:
    called, changes = 0, 0
    for seed in range(12):
        durations = noise(random.Random(seed), 14 * TEN_S, memory=0.9)
        versions = [durations[start : start + TEN_S] for start in range(0, len(durations), TEN_S)]
        for version in range(2, len(versions) + 1):
            change = observe(some_times(*versions[:version]), version)
            called += not change.verdict.startswith("No change observed")
            changes += 1
    assert called <= 0.05 * changes


@pytest.mark.slow
def test_a_change_that_did_nothing_beside_another_process_is_called_no_change() -> None:
    called, count = 0, 0
    for seed in range(60):
        rng = random.Random(seed)
        durations = with_other_process(rng, noise(rng, 2 * TEN_S, memory=0.5))
        change = observe(some_times(durations[:TEN_S], durations[TEN_S:]), 2)
        assert change.step_ns is not None
        called += change.verdict.startswith("Observed")
        count += change.step_ns.low <= 1 <= change.step_ns.high
    assert called <= 3
    assert count >= 57


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_twentieth_more_or_less_is_seen(factor: float) -> None:
    observed = 0
    for seed in range(40):
        rng = random.Random(seed)
        old, new = noise(rng, 520, 20 * MS, memory=0.5), noise(rng, 520, 20 * MS * factor, memory=0.5)
        change = observe(some_times(old, new), 2)
        assert change.step_ns is not None
        observed += change.step_ns.is_visible and (change.step_ns.ratio > 1) == (factor > 1)
    assert observed >= 36


@pytest.mark.slow
def test_a_tenth_more_beside_another_process_is_seen_in_the_undisturbed_step() -> None:
    observed = 0
    for seed in range(40):
        rng = random.Random(seed)
        old, new = noise(rng, 500, 20 * MS, memory=0.5), noise(rng, 500, 22 * MS, memory=0.5)
        change = observe(some_times(with_other_process(rng, old), with_other_process(rng, new)), 2)
        assert change.step_ns is not None
        observed += change.step_ns.is_visible and change.step_ns.ratio > 1
    assert observed >= 36


def test_what_a_run_does_by_itself_is_no_effect_of_a_change() -> None:
    """The step jumps by 6 % every ten seconds, change or not."""
    rng = random.Random(1)

    def low() -> list[float]:
        return noise(rng, TEN_S, 40 * MS)

    def high() -> list[float]:
        return noise(rng, TEN_S, 42.4 * MS)

    jumping = observe(some_times(low() + high(), low() + high(), low() + high(), low()), 4)
    assert jumping.step_ns is not None
    assert jumping.step_ns.ratio < 0.96
    assert not jumping.step_ns.is_visible
    steady = observe(some_times(high() + high(), high() + high(), low()), 3)
    assert steady.step_ns is not None
    assert steady.step_ns.is_visible


def test_the_verdict_names_what_moved_with_both_values_and_the_interval() -> None:
    times = some_times([20 * MS] * 600, [30 * MS] * 400, samples=(32, 96), peaks=(15 << 20, 30 << 20))
    change = observe(times, 2)
    assert change.verdict == (
        "Observed over 10 s on each side: "
        "undisturbed step 20.0 ms → 30.0 ms (+50 %, +47 % to +53 %); "
        "time per sample 625 µs → 312 µs (−50 %, −51 % to −49 %); "
        "throughput 1,600 samples/s → 3,200 samples/s (+100 %, +96 % to +104 %); "
        "peak memory 15.0 MiB → 30.0 MiB (+100 %, +100 % to +100 %)."
    )
    assert (change.steps_before, change.steps_after) == (501, 334)


@pytest.mark.parametrize("level_ns", [2_004_000.0, 999_400.0, 9_990_000.0, 0.1 * MS])
@pytest.mark.parametrize("factor", [1.025, 1.05, 0.975])
def test_values_that_are_said_to_differ_read_differently(level_ns: float, factor: float) -> None:
    count = round(10.5e9 / level_ns)
    stride = 1 + count // 600
    durations = [level_ns] * (count // stride), [level_ns * factor] * (count // stride)
    change = observe(some_times(*durations, stride=stride), 2)
    assert change.step_ns is not None
    assert change.step_ns.is_visible
    named = change.verdict.split("undisturbed step ")[1]
    before, after = named.split(" (")[0].split(" → ")
    assert before != after


def test_a_larger_batch_that_takes_as_much_longer_leaves_the_time_per_sample() -> None:
    change = observe(some_times([20 * MS] * 600, [40 * MS] * 300, samples=(32, 64)), 2)
    assert change.step_ns is not None
    assert change.sample_ns is not None
    assert change.samples_per_s is not None
    assert change.step_ns.is_visible
    assert not change.sample_ns.is_visible
    assert not change.samples_per_s.is_visible
    assert "throughput" not in change.verdict


def test_the_smaller_batches_at_the_ends_of_epochs_are_not_compared() -> None:
    times = some_times([20 * MS] * 600, [40 * MS] * 300, samples=(32, 64))
    for at, (samples, step_ns) in {50: (8, 5 * MS), 25: (40, 25 * MS)}.items():
        in_version = slice(0, 600) if at == 50 else slice(600, 900)
        for place in range(in_version.start, in_version.stop, at):
            times[place] = times[place]._replace(samples=samples, step_ns=step_ns)
    change = observe(times, 2)
    assert change.step_ns is not None
    assert change.sample_ns is not None
    assert change.step_ns.ratio == pytest.approx(2)
    assert change.sample_ns.ratio == pytest.approx(1)
    assert not change.sample_ns.is_visible


def test_where_most_batches_differ_in_size_all_are_compared() -> None:
    times = [time._replace(samples=at % 3) for at, time in enumerate(some_times([20 * MS] * 600))]
    window = stretches(times)[1]
    assert window.usual() is window


def test_a_difference_below_a_hundredth_is_none_that_matters() -> None:
    change = observe(some_times([20 * MS] * 600, [20.18 * MS] * 600), 2)
    assert change.verdict == (
        "No change observed over 10 s on each side: less than ±3.0 % in step time is not detectable here."
    )


@pytest.mark.parametrize("samples", [(0, 0), (32, 0)])
def test_steps_with_an_unknown_number_of_samples_are_compared_without_a_throughput(
    samples: tuple[int, int],
) -> None:
    change = observe(some_times([20 * MS] * 600, [30 * MS] * 400, samples=samples), 2)
    assert change.step_ns is not None
    assert change.step_ns.ratio == pytest.approx(1.5)
    assert (change.samples_per_s, change.sample_ns) == (None, None)
    assert change.verdict.startswith("Observed over 10 s on each side: undisturbed step 20.0 ms → 30.0 ms")
    assert "throughput" not in change.verdict


def test_slow_steps_that_went_away_show_in_the_throughput() -> None:
    waiting = [20 * MS if step % 4 else 100 * MS for step in range(600)]
    change = observe(some_times(waiting, [20 * MS] * 1200), 2)
    assert change.step_ns is not None
    assert change.samples_per_s is not None
    assert not change.step_ns.is_visible
    assert change.samples_per_s.is_visible
    assert change.samples_per_s.ratio == pytest.approx(2, rel=0.02)


def test_until_ten_seconds_have_passed_it_measures() -> None:
    change = observe(some_times([40 * MS] * 600, [40 * MS] * 100), 2)
    assert change.verdict == "Measuring: 4 of 10 s after the change."
    assert not change.has_windows
    assert change.step_ns is change.samples_per_s is change.peak_bytes is None


def test_a_change_after_four_seconds_ends_the_window_for_good() -> None:
    times = some_times([40 * MS] * 600, [40 * MS] * 100, [40 * MS] * 600)
    assert (
        observe(times[:700], 2, is_closed=True).verdict
        == "Not compared: 4 s after the change, 10 s are needed."
    )
    assert observe(times, 3).verdict == "Not compared: 4 s before the change, 10 s are needed."


def test_where_steps_are_long_there_have_to_be_some() -> None:
    change = observe(some_times([2e9] * 100, [2e9] * 12), 2)
    assert change.verdict == f"Measuring: 12 of {MIN_STEPS} steps after the change."
    change = observe(some_times([2e9] * 100, [2e9] * 12), 2, is_closed=True)
    assert change.verdict == f"Not compared: 12 steps after the change, {MIN_STEPS} are needed."
    change = observe(some_times([2e9] * 12, [2e9] * 100), 2)
    assert change.verdict == f"Not compared: 12 steps before the change, {MIN_STEPS} are needed."
    change = observe(some_times([2e10], [2e10] * 100), 2)
    assert change.verdict == f"Not compared: 1 step before the change, {MIN_STEPS} are needed."
    enough = observe(some_times([2e9] * MIN_STEPS, [3e9] * MIN_STEPS), 2)
    assert enough.step_ns is not None
    assert enough.step_ns.is_visible


@pytest.mark.parametrize(("seconds", "length_s"), [(12, 10), (25, 20), (35, 20), (120, 40)])
def test_windows_grow_in_steps_and_have_the_same_length_on_both_sides(seconds: int, length_s: int) -> None:
    change = observe(some_times([40 * MS] * 25 * 200, [20 * MS] * 50 * seconds), 2)
    assert change.seconds == pytest.approx(length_s, rel=0.25)
    assert change.steps_after == pytest.approx(2 * change.steps_before, rel=0.01)


def test_every_third_step_tells_as_much() -> None:
    every = some_times([20 * MS] * 600, [21 * MS] * 600)
    third = [time for time in every if time.step % 3 == 0]
    whole, part = observe(every, 2), observe(third, 2)
    assert part.step_ns is not None
    assert whole.step_ns is not None
    assert part.step_ns.ratio == whole.step_ns.ratio
    assert part.seconds == pytest.approx(whole.seconds, rel=0.02)


def test_a_peak_that_short_steps_share_counts_by_the_highest_of_each_second() -> None:
    """Most readings miss the moment of the peak."""
    rng = random.Random(1)
    times = [
        time._replace(peak_allocated_bytes=1_500_000 if rng.random() < 0.2 else 950_000)
        for time in some_times([20 * MS] * 600, [20 * MS] * 600)
    ]
    change = observe(times, 2)
    assert change.peak_bytes is not None
    assert change.peak_bytes.before == change.peak_bytes.after == 1_500_000
    assert not change.peak_bytes.is_visible


def test_memory_that_rises_by_itself_is_no_effect() -> None:
    times = [
        time._replace(peak_allocated_bytes=(10 << 20) + 20_000 * time.step)
        for time in some_times([20 * MS] * 600, [20 * MS] * 600)
    ]
    change = observe(times, 2)
    assert change.peak_bytes is not None
    assert not change.peak_bytes.is_visible


def test_memory_that_was_not_measured_is_left_out_and_the_rest_compared() -> None:
    change = observe(some_times([20 * MS] * 600, [40 * MS] * 600, peaks=(None,)), 2)
    assert change.peak_bytes is None
    assert change.step_ns is not None
    assert change.step_ns.is_visible


def test_a_peak_of_zero_does_not_break_it() -> None:
    change = observe(some_times([20 * MS] * 600, [20 * MS] * 600, peaks=(0,)), 2)
    assert change.peak_bytes is None
    assert change.verdict.startswith("No change observed")


def test_a_pause_is_no_time_of_the_steps() -> None:
    times = some_times([20 * MS] * 600, [20 * MS] * 600)
    paused = [time._replace(t_ns=time.t_ns + 60_000 * MS) if time.step > 300 else time for time in times]
    flags = int(StepFlag.TRANSITION)
    change = observe([time._replace(flags=flags) if time.step == 301 else time for time in paused], 2)
    assert change.samples_per_s is not None
    assert change.samples_per_s.ratio == pytest.approx(1)
    assert change.steps_before == change.steps_after


def test_rows_that_no_run_writes_do_not_break_it() -> None:
    times = some_times([20 * MS] * 600, [20 * MS] * 600)
    broken = [
        time._replace(step_ns=0)
        if time.step % 7 == 0
        else time._replace(samples=0)
        if time.step % 11 == 0
        else time
        for time in times
    ]
    assert observe(broken, 2).verdict.startswith("No change observed")
    assert observe([time._replace(t_ns=5) for time in times], 2).verdict.startswith("Not compared")


def flagged(times: list[StepTime], first: int, last: int) -> list[StepTime]:
    return [
        time._replace(step_ns=time.step_ns * 9, flags=int(StepFlag.TRANSITION))
        if first <= time.step <= last
        else time
        for time in times
    ]


def test_flagged_steps_are_left_out_and_counted() -> None:
    times = flagged(some_times([20 * MS] * 600, [20 * MS] * 600), 601, 605)
    change = observe(times, 2)
    assert change.left_out == 5
    assert change.verdict.startswith("No change observed")


def test_only_the_steps_next_to_the_change_are_compared() -> None:
    """Far away from it, and for once, the steps were longer."""
    far, near = [200 * MS] * 50, [20 * MS] * round(50 * LENGTHS_S[-1])
    change = observe(some_times(far + near, [25 * MS] * len(near) + far), 2)
    assert change.step_ns is not None
    assert change.step_ns.ratio == pytest.approx(1.25)


def test_a_slow_block_among_others_is_no_change() -> None:
    slow = [20 * MS] * 400 + [40 * MS] * 100
    change = observe(some_times([20 * MS] * 600, slow), 2)
    assert not change.verdict.startswith("Observed")


def speeds(rng: random.Random, count: int) -> list[float]:
    """The speed of a machine that another one on the same host slows down for seconds at a time."""
    factors: list[float] = []
    while len(factors) < count:
        factors += [rng.choice((1.0, 1.5))] * rng.randint(20, 600)
    return factors[:count]


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "least"), [(1.0, 0), (1.05, 28), (0.95, 28)])
def test_a_machine_that_gets_slower_for_a_while_is_told_from_a_slower_step(factor: float, least: int) -> None:
    """The reference work beside the steps slows down with them, give or take two percent."""
    named, wrong = 0, 0
    for seed in range(40):
        rng = random.Random(seed)
        durations = noise(rng, 520, 20 * MS) + noise(rng, 520, 20 * MS * factor)
        slow = speeds(rng, len(durations))
        slowed = [duration * speed for duration, speed in zip(durations, slow, strict=True)]
        steps = some_times(slowed[:520], slowed[520:])
        work = [round(15_000 * speed * rng.uniform(0.98, 1.02)) for speed in slow]
        change = observe(steps, 2, True, at_equal_speed(list(zip(steps, work, strict=True))))
        assert change.step_ns is not None
        right = change.step_ns.is_visible and (change.step_ns.ratio > 1) == (factor > 1)
        named += right
        wrong += change.step_ns.is_visible and not right
    assert named >= least
    assert wrong <= 2


@pytest.mark.slow
def test_the_figure_with_the_narrower_interval_is_compared() -> None:
    """On a steady machine the undisturbed step is precise, and reference work of a few us is not."""
    count = 0
    for seed in range(20):
        rng = random.Random(seed)
        steps = some_times(noise(rng, 520, 20 * MS), noise(rng, 520, 21 * MS))
        work = [round(15_000 * rng.lognormvariate(0, 0.4)) for _ in steps]
        change = observe(steps, 2, True, at_equal_speed(list(zip(steps, work, strict=True))))
        assert change.step_ns is not None
        assert change.step_name == "undisturbed step"
        count += change.step_ns.is_visible and change.step_ns.ratio > 1
    assert count >= 18


@pytest.mark.slow
@pytest.mark.parametrize("speed", [1.4, 1 / 1.4])
def test_a_machine_that_changed_its_speed_with_the_settings_is_no_change_of_the_step(speed: float) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        steps = some_times(noise(rng, 800, 20 * MS), noise(rng, 800, 20 * MS * speed))
        took_ns = [15_000 * rng.lognormvariate(0, 0.1) * (1 if at < 800 else speed) for at in range(1600)]
        work = list(zip(steps, map(round, took_ns), strict=True))
        change = observe(steps, 2, True, at_equal_speed(work))
        assert change.step_ns is not None
        assert not change.step_ns.is_visible


def test_without_enough_reference_work_the_undisturbed_step_is_compared() -> None:
    steps = some_times([20 * MS] * 600, [30 * MS] * 400)
    few = [(step, 15_000) for step in steps[::50]]
    change = observe(steps, 2, True, at_equal_speed(few))
    assert change.step_name == "undisturbed step"
    assert at_equal_speed([(steps[0], 0)]) == []

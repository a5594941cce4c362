"""Test whether one series of readings leaks."""

import math

import numpy as np
import pytest

from harness.analysis.leak.growth import LEAST_FOR_LEAK, LEAST_SAMPLES, GrowthJudge, Judgment
from harness.records.memory import LeakVerdict

KIB, MIB, GIB = 2**10, 2**20, 2**30


def judged(values: list[float], judge: GrowthJudge | None = None, first_step: int = 1) -> Judgment:
    """The last verdict on the values of consecutive steps, judged as they come in."""
    judge = judge or GrowthJudge()
    for step, value in enumerate(values, first_step):
        judge.add(step, value)
        judge.judge()
    return judge.judge()


def line(steps: int, slope: float, level: float = 100 * MIB) -> list[float]:
    return [level + slope * step for step in range(steps)]


def test_a_few_readings_are_too_early_to_say() -> None:
    judgment = judged(line(LEAST_SAMPLES - 1, 10 * MIB))
    assert judgment.verdict is LeakVerdict.TOO_EARLY
    assert judgment.trend is None


def test_a_steady_series_is_steady_and_says_what_it_would_have_seen() -> None:
    judgment = judged([100.0 * MIB] * 1_000)
    assert judgment.verdict is LeakVerdict.STEADY
    assert judgment.detection_limit is not None
    assert judgment.detection_limit == pytest.approx(2.1 * MIB / 1_000, rel=0.1)


def test_a_rise_is_watched_before_it_is_a_leak() -> None:
    assert judged(line(LEAST_FOR_LEAK - 4, MIB)).verdict is LeakVerdict.WATCH
    judgment = judged(line(2 * LEAST_FOR_LEAK, MIB))
    assert judgment.verdict is LeakVerdict.LEAK
    assert judgment.trend is not None
    assert judgment.trend.low <= MIB <= judgment.trend.high
    assert judgment.risen_bytes == pytest.approx(2 * LEAST_FOR_LEAK * MIB, rel=0.2)


@pytest.mark.parametrize(("every", "verdicts"), [(24, {"steady", "watch"}), (8, {"leak"})])
def test_a_few_stairs_are_no_leak_yet_and_many_are(every: int, verdicts: set[str]) -> None:
    judge = GrowthJudge()
    values = [100.0 * MIB + step // every * 2 * MIB for step in range(120)]
    observed = {judged([value], judge, step).verdict for step, value in enumerate(values, 1)}
    assert judge.judge().verdict.value in verdicts
    assert (LeakVerdict.LEAK in observed) == (every == 8)
    limit = judge.judge().detection_limit
    assert limit is not None
    assert (limit < 2 * MIB / every) == (every == 8)


@pytest.mark.parametrize("quiet", [0, 300, 500])
def test_a_leak_that_begins_late_has_not_risen_more_than_the_readings_have(quiet: int) -> None:
    values = line(quiet, 0.0) + line(1_400, 64 * KIB)
    judgment = judged(values)
    assert judgment.verdict is LeakVerdict.LEAK
    assert judgment.risen_bytes is not None
    assert 0.8 * 1_400 * 64 * KIB <= judgment.risen_bytes <= values[-1] - values[0]


@pytest.mark.parametrize("steps", [1_536, 1_740, 1_950, 2_300])
def test_the_rise_includes_that_before_and_after_the_coarse_blocks(steps: int) -> None:
    assert judged(line(steps, 64 * KIB)).risen_bytes == pytest.approx(steps * 64 * KIB, rel=0.06)


def test_a_rise_of_less_than_a_mebibyte_is_not_called_anything() -> None:
    assert judged(line(500, 1.5 * KIB)).verdict is LeakVerdict.STEADY


def test_what_recovers_is_a_sawtooth() -> None:
    assert judged([100 * MIB + step % 200 * MIB for step in range(1_000)]).verdict is LeakVerdict.SAWTOOTH


def test_noise_is_steady_and_not_a_sawtooth() -> None:
    noise = np.random.default_rng(1).uniform(0, 12 * MIB, 2_000)
    assert judged(noise.tolist()).verdict is LeakVerdict.STEADY


def test_a_leak_that_levels_off_is_taken_back() -> None:
    judge = GrowthJudge()
    assert judged(line(500, MIB), judge).verdict is LeakVerdict.LEAK
    assert judged([600.0 * MIB] * 500, judge, first_step=501).verdict is LeakVerdict.STEADY


def test_a_leak_whose_memory_is_given_back_is_taken_back() -> None:
    judge = GrowthJudge()
    assert judged(line(500, MIB), judge).verdict is LeakVerdict.LEAK
    assert judged([100.0 * MIB] * 100, judge, first_step=501).verdict is LeakVerdict.SAWTOOTH


def test_one_jump_is_no_leak() -> None:
    values = [100.0 * MIB] * 300 + [900.0 * MIB] * 700
    assert judged(values).verdict is LeakVerdict.STEADY


def test_a_leak_that_begins_after_a_jump_is_found() -> None:
    values = [100.0 * MIB] * 100 + line(900, 64 * KIB, 900 * MIB)
    judgment = judged(values)
    assert judgment.verdict is LeakVerdict.LEAK
    assert judgment.trend is not None
    assert judgment.trend.slope == pytest.approx(64 * KIB, rel=0.05)


def test_a_leak_that_comes_in_lumps_is_found() -> None:
    assert judged([100 * MIB + step // 50 * 8.0 * MIB for step in range(2_000)]).verdict is LeakVerdict.LEAK


def test_a_leak_under_spikes_is_found() -> None:
    values = [value + (4_096 * MIB if step % 40 < 5 else 0) for step, value in enumerate(line(1_000, MIB))]
    judgment = judged(values)
    assert judgment.verdict is LeakVerdict.LEAK
    assert judgment.trend is not None
    assert judgment.trend.slope == pytest.approx(MIB, rel=0.05)


def test_what_was_not_measured_is_left_out() -> None:
    judge = GrowthJudge()
    for step in range(1, 1_001):
        judge.add(step, [100.0 * MIB + step * MIB, None, math.nan, math.inf][step % 4])
    judgment = judge.judge()
    assert judge.samples == 250
    assert judgment.verdict is LeakVerdict.LEAK
    assert judgment.trend is not None
    assert judgment.trend.slope == pytest.approx(MIB)


def test_after_a_restart_everything_before_is_forgotten() -> None:
    judge = GrowthJudge()
    judged(line(500, MIB), judge)
    judge.restart()
    assert judge.judge().verdict is LeakVerdict.TOO_EARLY
    assert judged([100.0 * MIB] * 500, judge, first_step=501).since_step >= 501


def test_steps_that_start_over_start_a_new_history() -> None:
    judge = GrowthJudge()
    judged(line(500, MIB), judge)
    judge.add(1, 100.0 * MIB)
    assert judge.samples == 1


def test_a_long_run_takes_no_more_memory_and_is_still_judged_as_a_whole() -> None:
    judge = GrowthJudge()
    for step in range(1, 100_001):
        judge.add(step, 100.0 * MIB + 512 * step)
    judgment = judge.judge()
    assert len(judge._history._values) <= 192
    assert judgment.since_step == 1
    assert judgment.verdict is LeakVerdict.LEAK


def calls(values: list[float]) -> list[int]:
    """The steps at which a series is called a leak, judged every tenth step."""
    judge, called = GrowthJudge(), list[int]()
    for step, value in enumerate(values, 1):
        judge.add(step, value)
        if step % 10 == 0 and judge.judge().verdict is LeakVerdict.LEAK:
            called.append(step)
    return called


@pytest.mark.parametrize("period", [60, 250, 500, 1_000])
def test_a_list_that_is_emptied_now_and_then_is_no_leak_after_the_first_time(period: int) -> None:
    called = calls([GIB + step % period * 200 * KIB for step in range(5_000)])
    assert [step for step in called if step > period + period // 8] == []


@pytest.mark.parametrize("leaked", [40, 200])
def test_a_leak_beside_a_list_that_is_emptied_is_called(leaked: int) -> None:
    assert calls([GIB + step % 100 * 200 * KIB + step * leaked * KIB for step in range(5_000)])[-1] == 5_000


def test_much_that_was_freed_at_the_beginning_does_not_hide_a_leak() -> None:
    values = [5.0 * GIB if step < 100 else GIB + step * MIB for step in range(2_000)]
    assert calls(values)[-1] == 2_000


def test_no_limit_is_stated_before_a_leak_could_be_called() -> None:
    judge = GrowthJudge()
    for step in range(1, 4 * LEAST_FOR_LEAK):
        judge.add(step, GIB)
        assert judge.judge(4 * LEAST_FOR_LEAK).detection_limit is None

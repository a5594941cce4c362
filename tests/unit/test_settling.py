"""Test that a heap that settles is no leak, and that holes and objects that keep growing are."""

from collections.abc import Callable

import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.growth import Judgment
from harness.analysis.leak.headroom import Limits
from harness.analysis.leak.settling import settled
from harness.analysis.leak.trend import Trend
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from tests.leak_factories import GIB, MIB, a_row

STEPS = 640
# A healthy transformer: a step needs 5.1 MiB, and the heap grew by 7.3 MiB in the first 240 steps.
NEEDED, LIVE = 5_100_000, 46 * MIB
LIMITS = Limits(6 * GIB, 20 * GIB)


def judged(
    holes: Callable[[int], int],
    objects: Callable[[int], int],
    live: Callable[[int], int] = lambda _step: LIVE,
) -> list[list[LeakRow]]:
    """All verdicts on a script with holes, objects outside the heap, and live memory, of the given sizes at
    each step."""
    detector, result = LeakDetector(on_cpu=True), list[list[LeakRow]]()
    for step in range(1, STEPS + 1):
        row = a_row(step, live(step), rss=live(step) + 380 * MIB + holes(step) + objects(step))
        detector.add_steps([row._replace(peak_allocated_bytes=live(step) + NEEDED)], LIMITS)
        detector.add_host(step, None, 5 * MIB + holes(step))
        if step % 8 == 0:
            result.append(detector.judge(row.t_ns, LIMITS))
    return result


def called(verdicts: list[list[LeakRow]]) -> dict[str, int]:
    """The series that were called a leak, each with the first step at which it was."""
    leaks = [row for rows in verdicts for row in rows if row.verdict == LeakVerdict.LEAK]
    return {row.series: row.step for row in reversed(leaks)}


def settling(step: int) -> int:
    """Holes that grow by blocks of 450 KiB, up to 7.3 MiB."""
    return min(step * 32 * 2**10 // (450 * 2**10), 16) * 450 * 2**10


def test_a_heap_that_settles_is_no_leak() -> None:
    verdicts = judged(settling, lambda _step: 0)
    assert called(verdicts) == {}
    rising = {row.message for rows in verdicts for row in rows if row.verdict == LeakVerdict.WATCH}
    (sentence, *_) = [message for message in rising if "settled" in message]
    assert "Until holes have settled, the heap may grow by 14.6 MiB" in sentence


def test_holes_that_outgrow_what_steps_need_are_fragmentation() -> None:
    verdicts = called(judged(lambda step: step * 100_000, lambda _step: 0))
    assert set(verdicts) == {LeakSeries.FRAGMENTATION}
    assert 3 * NEEDED <= verdicts[LeakSeries.FRAGMENTATION] * 100_000 < 5 * NEEDED


def test_holes_under_a_full_buffer_are_no_leak_before_they_exceed_half_of_it() -> None:
    """A replay buffer of 100 MiB is full after 60 steps, and its items are replaced from then on."""

    def buffer(step: int) -> int:
        return LIVE + min(step, 60) * 100 * MIB // 60

    assert called(judged(lambda step: step * 60_000, lambda _step: 0, buffer)) == {}
    verdicts = called(judged(lambda step: step * 200_000, lambda _step: 0, buffer))
    assert set(verdicts) == {LeakSeries.FRAGMENTATION}
    assert verdicts[LeakSeries.FRAGMENTATION] * 200_000 >= 45 * MIB


def test_small_objects_outside_the_heap_are_a_leak_before_they_outgrow_a_step() -> None:
    verdicts = called(judged(settling, lambda step: step * 100_000))
    assert set(verdicts) == {LeakSeries.HOST}
    assert verdicts[LeakSeries.HOST] * 100_000 < 6 * NEEDED


def test_the_stated_limit_is_no_less_than_what_may_settle() -> None:
    rows = judged(lambda _step: 0, lambda _step: 0)[-1]
    limits = {row.series: row.detection_limit for row in rows}
    assert (limits[LeakSeries.FRAGMENTATION] or 0) * STEPS >= 3 * NEEDED
    assert (limits[LeakSeries.ALLOCATED] or 0) * STEPS < NEEDED


@pytest.mark.parametrize(("low", "verdict"), [(40.0, LeakVerdict.LEAK), (-244.0, LeakVerdict.WATCH)])
def test_a_leak_that_may_not_grow_is_none_once_it_exceeds_what_may_settle(
    low: float, verdict: LeakVerdict
) -> None:
    steady = Judgment(LeakVerdict.STEADY, 1, STEPS)
    trend = Trend(z=4.0, slope=90_000.0, low=low, high=240_000.0, residual=0.0)
    holes = Judgment(LeakVerdict.LEAK, 1, STEPS, trend, risen_bytes=4.0 * NEEDED)
    judgments = dict.fromkeys(LeakSeries, steady) | {LeakSeries.FRAGMENTATION: holes}
    assert settled(judgments, NEEDED, 0)[LeakSeries.FRAGMENTATION].verdict is verdict

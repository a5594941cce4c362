"""Test that a cache that fills is not called a leak once it is full, and that growing inputs are none."""

import numpy as np
import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.growth import LEAST_FOR_LEAK, GrowthJudge
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from tests.leak_factories import GIB, MIB, a_row

KIB = 1024
# Steps and live memory in KiB of a script with a replay buffer of 3,000 transitions, two per step: full at
# step 1,500. The heap of small tensors is read ever more rarely.
FILLING = [
    *((step, 51_900 + step * 16) for step in range(6, 500, 8)),
    *((step, 51_900 + step * 16) for step in range(500, 1_500, 42)),
]
FULL = [(1_500 + 48 * number, 76_630 + number) for number in range(24)]


def verdicts(readings: list[tuple[int, int]]) -> list[LeakVerdict]:
    judge, result = GrowthJudge(), []
    for step, size_kib in readings:
        judge.add(step, size_kib * KIB)
        result.append(judge.judge().verdict)
    return result


def test_a_buffer_that_is_full_before_there_are_enough_readings_is_not_called_a_leak() -> None:
    readings = [*FILLING, *FULL]
    assert len(FILLING) < LEAST_FOR_LEAK < len(readings)
    assert LeakVerdict.WATCH in verdicts(readings)
    assert LeakVerdict.LEAK not in verdicts(readings)


@pytest.mark.parametrize("filled", [150, 400, 1_500])
def test_the_verdict_is_withdrawn_within_a_sixth_of_the_time_that_filling_took(filled: int) -> None:
    judge, withdrawn = GrowthJudge(), None
    for step in range(1, 2 * filled):
        judge.add(step, GIB + min(step, filled) * MIB)
        verdict = judge.judge().verdict
        if step == filled:
            assert verdict is LeakVerdict.LEAK
        if step > filled and verdict is not LeakVerdict.LEAK:
            withdrawn = step - filled
            break
    assert withdrawn is not None
    assert withdrawn <= filled // 6 + 8


@pytest.mark.parametrize("seed", range(5))
def test_a_noisy_leak_never_looks_like_a_full_cache(seed: int) -> None:
    chance, judge, verdicts = np.random.default_rng(seed), GrowthJudge(), list[LeakVerdict]()
    for step in range(1, 1_500):
        judge.add(step, GIB + step * MIB / 8 + chance.normal(0, 8 * MIB))
        verdicts.append(judge.judge().verdict)
    first = verdicts.index(LeakVerdict.LEAK)
    assert LeakVerdict.WATCH not in verdicts[first:]


def judged(held_kib: float, forward_kib: float, full_at: int = 10_000, steps: int = 400) -> LeakRow:
    """The verdict on live memory and on the forward pass that grow by so much per step."""
    detector, rows = LeakDetector(on_cpu=True), list[LeakRow]()
    for step in range(1, steps + 1):
        live_bytes = GIB + int(min(step, full_at) * held_kib * KIB)
        detector.add_steps([a_row(step, live_bytes, rss=2 * GIB + live_bytes)])
        forward = 168 * KIB + int(step * forward_kib * KIB)
        detector.add_host(step, None, 0, forward_end_bytes=(forward,))
        if step % 10 == 0:
            rows = detector.judge(step * 100_000_000)
    return next(row for row in rows if row.series == LeakSeries.ALLOCATED)


def test_what_grows_less_than_tenfold_beside_growing_inputs_is_watched() -> None:
    # As with images that grow by 2 pixels every 100 steps: oneDNN caches 300 KiB for each new shape.
    row = judged(held_kib=3.5 * 4, forward_kib=1.0 * 4)
    assert row.verdict == LeakVerdict.WATCH
    assert "as with growing inputs" in row.message
    assert judged(held_kib=3.5 * 4, forward_kib=0).verdict == LeakVerdict.LEAK
    assert judged(held_kib=80, forward_kib=4).verdict == LeakVerdict.LEAK


def test_the_holes_that_growing_inputs_leave_are_watched_too() -> None:
    # Of the same script the process grows by 11.5 KiB per step outside live objects.
    def verdict(forward_kib: float) -> LeakVerdict:
        detector, rows = LeakDetector(on_cpu=True), list[LeakRow]()
        for step in range(1, 401):
            detector.add_steps([a_row(step, GIB, rss=2 * GIB + int(step * 46 * KIB))])
            forward = 168 * KIB + int(step * forward_kib * KIB)
            detector.add_host(step, None, 0, forward_end_bytes=(forward,))
            if step % 10 == 0:
                rows = detector.judge(step * 100_000_000)
        return LeakVerdict(next(row.verdict for row in rows if row.series == LeakSeries.HOST))

    assert verdict(4) is LeakVerdict.WATCH
    assert verdict(0) is LeakVerdict.LEAK
    assert verdict(1) is LeakVerdict.LEAK


def test_the_sentence_on_a_leak_says_that_a_cache_looks_the_same() -> None:
    row = judged(held_kib=256, forward_kib=0)
    assert "A cache that fills looks the same until it is full" in row.message
    full = judged(held_kib=256, forward_kib=0, full_at=340)
    assert full.verdict == LeakVerdict.WATCH
    assert "it has hardly grown, as a cache that is full" in full.message

"""Test that steps which copy what accumulates leak, and run out of memory in half the time."""

from collections.abc import Callable

import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Copy, Headroom, Limits
from harness.analysis.leak.trend import Trend
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from tests.leak_factories import GIB, MIB, a_row

STEPS = 400
LEAK = Trend(z=9.0, slope=float(MIB), low=float(MIB), high=float(MIB), residual=0.0)


def judged(
    on_cpu: bool,
    forward_end: Callable[[int], int] | None = None,
    transient: Callable[[int], int] = lambda step: step * MIB + 20 * MIB,
    copied_bytes: int = 0,
    retained_slope: int = 0,
    left: Callable[[int], int] = lambda step: 4 * GIB - step * MIB,
) -> LeakRow:
    """The verdict on live memory that grows by 1 MiB per step, under a limit of 10 GiB."""
    detector, limits, rows = LeakDetector(on_cpu=on_cpu), Limits(10 * GIB, 20 * GIB), list[LeakRow]()
    detector.set_copy(STEPS, copied_bytes)
    detector.set_retained(STEPS // 2, retained_slope)
    for step in range(1, STEPS + 1):
        live_bytes = GIB + step * MIB
        row = a_row(step, live_bytes, live_bytes + 100 * MIB, live_bytes)
        detector.add_steps([row._replace(peak_allocated_bytes=live_bytes + transient(step))], limits)
        ends = () if forward_end is None else (forward_end(step),)
        detector.add_host(step, None, 0, left(step) if on_cpu else None, None, ends)
        if step % 10 == 0:
            rows = detector.judge(row.t_ns, limits)
    return next(row for row in rows if row.series == LeakSeries.ALLOCATED)


def test_peaks_that_grow_with_what_accumulates_are_a_copy_of_it_on_a_gpu() -> None:
    row = judged(on_cpu=False)
    assert row.verdict == LeakVerdict.LEAK
    # 10 GiB less what is reserved and less the copy, of which nothing is cached.
    assert row.steps_to_oom == pytest.approx((9 * GIB - STEPS * MIB - 100 * MIB) / (2 * MIB), rel=0.05)


def test_on_the_cpu_they_are_one_where_memory_does_not_grow_at_the_end_of_the_forward_pass() -> None:
    row = judged(True, lambda step: 7 * MIB + step % 3)
    assert row.verdict == LeakVerdict.LEAK
    left_bytes = 4 * GIB - STEPS * MIB - (STEPS + 20) * MIB
    assert row.steps_to_oom == pytest.approx(left_bytes / (2 * MIB), rel=0.05)


def test_on_the_cpu_inputs_grow_where_it_grows_there_too() -> None:
    assert judged(True, lambda step: 7 * MIB + step * MIB).verdict == LeakVerdict.WATCH


def test_what_a_hunt_has_found_in_every_step_is_a_leak_also_where_inputs_grow() -> None:
    row = judged(True, lambda step: 7 * MIB + step * MIB, retained_slope=MIB)
    assert row.verdict == LeakVerdict.LEAK
    few = judged(True, lambda step: 7 * MIB + step * MIB, retained_slope=MIB // 4)
    assert few.verdict == LeakVerdict.WATCH


@pytest.mark.parametrize("needed", [MIB, MIB // 64])
def test_where_inputs_grow_the_steps_left_are_those_until_nothing_is_left(needed: int) -> None:
    """Larger batches leave larger holes, also beside a leak that grows much faster than they do."""

    def left(step: int) -> int:
        return 4 * GIB - step * MIB - step**2 * 4096

    row = judged(True, lambda step: step * needed, lambda step: step * needed + 1, left=left)
    end = next(step for step in range(10_000) if left(step) < 0)
    assert row.steps_to_oom == pytest.approx(end - STEPS, rel=0.05)


def test_a_copy_that_a_hunt_has_found_counts_where_no_peak_was_caught() -> None:
    row = judged(True, transient=lambda _step: 0, copied_bytes=STEPS * MIB)
    left_bytes = 4 * GIB - STEPS * MIB - STEPS * MIB
    assert row.steps_to_oom == pytest.approx(left_bytes / (2 * MIB), rel=0.05)
    alone = judged(True, transient=lambda _step: 0)
    assert alone.steps_to_oom == pytest.approx((4 * GIB - STEPS * MIB) / MIB, rel=0.05)


def test_a_copy_needs_its_size_now_and_twice_the_growth() -> None:
    headroom = Headroom(on_cpu=True)
    for step in range(1, 201):
        headroom.add_step(a_row(step, rss=GIB + step * MIB))
        headroom.add_heap(1, 0, 300 * MIB)
    limits = Limits(None, 20 * GIB)
    assert headroom.steps_left(LeakSeries.ALLOCATED, LEAK, limits, Copy(100 * MIB, MIB)) == 100


def test_readings_from_the_middle_of_copies_do_not_count_the_copy_twice() -> None:
    headroom, held = Headroom(on_cpu=True), 400 * MIB
    for step in range(1, 201):
        headroom.add_step(a_row(step, held, rss=GIB + step * MIB))
        headroom.add_heap(1, 0, 200 * MIB, data_bytes=-(200 + 500) * MIB)  # 100 MiB are a copy.
    limits = Limits(None, 20 * GIB)
    assert headroom.steps_left(LeakSeries.ALLOCATED, LEAK, limits, Copy(100 * MIB, MIB)) == 100

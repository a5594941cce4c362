"""Test how many steps a leak has left: what the limit counts, with readings missing, on the CPU and on a
GPU."""

import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Headroom, Limits
from harness.analysis.leak.trend import Trend
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import StepRow
from tests.leak_factories import GIB, MIB, a_row

LEAK = Trend(z=9.0, slope=float(MIB), low=float(MIB), high=float(MIB), residual=0.0)
STEPS = 200


def unread(step: int) -> StepRow:
    """A step that nothing was read in, as those after a change and between slow readings of the heap."""
    return a_row(step)._replace(allocated_bytes=None, peak_allocated_bytes=None, reserved_bytes=None)


def on_cpu(cap_left: int | None, rss_slope: int, heap_free: int = 0) -> Headroom:
    headroom = Headroom(on_cpu=True)
    for step in range(1, STEPS + 1):
        headroom.add_step(a_row(step, rss=GIB + step * rss_slope))
        headroom.add_heap(step, heap_free, cap_left)
    return headroom


def test_a_step_without_a_reading_does_not_make_the_limit_of_a_gpu_forgotten() -> None:
    headroom = Headroom(on_cpu=False)
    headroom.add_step(a_row(1, allocated=GIB, reserved=2 * GIB))
    headroom.add_step(unread(2))
    assert headroom.steps_left(LeakSeries.ALLOCATED, LEAK, Limits(10 * GIB, 900 * GIB)) == 8 * GIB // MIB


def segments(step: int, active: int, split: int, reserved: int, passing: int = 0) -> StepRow:
    """A step after which so much of what is reserved lies free in segments that are in use in part."""
    row = a_row(step, allocated=active, reserved=reserved)
    return row._replace(
        peak_allocated_bytes=active + passing, active_bytes=active, inactive_split_bytes=split
    )


def test_segments_that_the_allocator_can_return_are_left_to_a_leak_less_what_a_step_needs() -> None:
    headroom = Headroom(on_cpu=False)
    headroom.add_step(segments(1, active=GIB, split=GIB, reserved=8 * GIB, passing=2 * GIB))
    headroom.add_step(segments(2, active=GIB, split=GIB, reserved=8 * GIB, passing=GIB))
    limits = Limits(10 * GIB, 900 * GIB)
    assert headroom.steps_left(LeakSeries.ALLOCATED, LEAK, limits) == (2 + 4) * GIB // MIB


def test_a_leak_that_pins_twice_what_it_takes_runs_out_in_half_the_time() -> None:
    headroom = Headroom(on_cpu=False)
    for step in range(1, STEPS + 1):
        active, split = GIB + step * MIB, step * MIB
        headroom.add_step(segments(step, active=active, split=split, reserved=active + split))
    limits = Limits(GIB + 2 * STEPS * MIB + 300 * MIB)
    assert headroom.steps_left(LeakSeries.ALLOCATED, LEAK, limits) == 150


@pytest.mark.parametrize("series", [LeakSeries.ALLOCATED, LeakSeries.HOST])
def test_on_the_cpu_every_leak_of_the_process_runs_into_the_cap(series: LeakSeries) -> None:
    headroom = on_cpu(300 * MIB, rss_slope=MIB)
    headroom.add_step(unread(STEPS + 1))
    assert headroom.steps_left(series, LEAK, Limits(300 * MIB, 20 * GIB)) == 300


def test_a_leak_that_leaves_holes_behind_takes_what_both_take() -> None:
    assert on_cpu(300 * MIB, 2 * MIB).steps_left(LeakSeries.ALLOCATED, LEAK, Limits(None, 20 * GIB)) == 150


def test_a_leak_that_is_served_from_holes_fills_them_first() -> None:
    headroom = on_cpu(300 * MIB, rss_slope=0, heap_free=100 * MIB)
    assert headroom.steps_left(LeakSeries.ALLOCATED, LEAK, Limits(None, 20 * GIB)) == 400


def test_holes_cannot_serve_their_own_growth() -> None:
    headroom = on_cpu(300 * MIB, rss_slope=MIB, heap_free=100 * MIB)
    assert headroom.steps_left(LeakSeries.FRAGMENTATION, LEAK, Limits(None, 20 * GIB)) == 300


def test_beside_holes_the_next_step_needs_room_for_its_peak() -> None:
    headroom = on_cpu(300 * MIB, rss_slope=MIB)
    headroom.add_step(a_row(STEPS + 1, rss=GIB + STEPS * MIB)._replace(peak_allocated_bytes=GIB + 200 * MIB))
    assert headroom.steps_left(LeakSeries.FRAGMENTATION, LEAK, Limits(None, 20 * GIB)) == 100


def test_of_holes_no_time_is_stated_where_the_process_does_not_grow_or_no_peak_is_known() -> None:
    flat, unknown = on_cpu(300 * MIB, rss_slope=0), on_cpu(300 * MIB, rss_slope=MIB)
    unknown.add_step(unread(STEPS + 1))
    for headroom in (flat, unknown):
        assert headroom.steps_left(LeakSeries.FRAGMENTATION, LEAK, Limits(None, 20 * GIB)) is None


def test_what_counts_is_the_least_that_was_left_within_a_second() -> None:
    headroom = on_cpu(300 * MIB, rss_slope=MIB)
    headroom.add_heap(1, 0, 120 * MIB)
    headroom.add_heap(1, 0, 300 * MIB)
    assert headroom.steps_left(LeakSeries.HOST, LEAK, Limits(None, 20 * GIB)) == 120


@pytest.mark.parametrize(("heap_free", "steps"), [(0, 0), (40 * MIB, None)])
def test_at_the_limit_a_leak_goes_on_in_holes(heap_free: int, steps: int | None) -> None:
    headroom = on_cpu(MIB // 2, rss_slope=MIB, heap_free=heap_free)
    assert headroom.steps_left(LeakSeries.ALLOCATED, LEAK, Limits(None, 20 * GIB)) == steps


def test_a_rate_that_is_hardly_known_states_no_steps() -> None:
    headroom = on_cpu(300 * MIB, rss_slope=0)
    assert headroom.steps_left(LeakSeries.HOST, LEAK, Limits(None, 20 * GIB)) == 300
    for vague in (LEAK._replace(low=MIB / 2), LEAK._replace(high=2.0 * MIB)):
        assert headroom.steps_left(LeakSeries.HOST, vague, Limits(None, 20 * GIB)) is None


def test_a_limit_that_the_script_has_removed_counts_no_more() -> None:
    headroom = on_cpu(300 * MIB, rss_slope=MIB)
    headroom.add_heap(1, 0, None)
    assert headroom.steps_left(LeakSeries.HOST, LEAK, Limits(None, 2 * GIB)) == 2048


def test_without_a_cap_the_cpu_runs_out_with_the_machine() -> None:
    assert on_cpu(None, MIB).steps_left(LeakSeries.HOST, LEAK, Limits(None, 2 * GIB)) == 2048


@pytest.mark.parametrize(("is_cpu", "series"), [(True, LeakSeries.WORKERS), (False, LeakSeries.HOST)])
def test_what_lies_outside_the_cap_has_the_machine(is_cpu: bool, series: LeakSeries) -> None:
    headroom = on_cpu(300 * MIB, MIB) if is_cpu else Headroom(on_cpu=False)
    assert headroom.steps_left(series, LEAK, Limits(GIB, 2 * GIB)) == 2048


def test_workers_run_out_at_a_limit_of_theirs() -> None:
    limits = Limits(GIB, 2 * GIB, workers_left_bytes=300 * MIB)
    assert on_cpu(None, MIB).steps_left(LeakSeries.WORKERS, LEAK, limits) == 300
    assert on_cpu(None, MIB).steps_left(LeakSeries.HOST, LEAK, limits) == 2048


def test_what_others_take_of_a_gpu_is_not_left_to_the_run() -> None:
    headroom = Headroom(on_cpu=False)
    headroom.add_step(a_row(1, allocated=2 * GIB, reserved=2 * GIB))
    limits = Limits(80 * GIB, None, device_free_bytes=GIB)
    assert headroom.steps_left(LeakSeries.ALLOCATED, LEAK, limits) == 1024


def test_without_a_limit_nothing_is_said() -> None:
    assert Headroom(on_cpu=False).steps_left(LeakSeries.ALLOCATED, LEAK, Limits(GIB)) is None
    assert on_cpu(None, MIB).steps_left(LeakSeries.ALLOCATED, LEAK, Limits()) is None


def test_a_restart_forgets_what_was_left() -> None:
    headroom = on_cpu(300 * MIB, MIB)
    headroom.restart()
    assert headroom.steps_left(LeakSeries.HOST, LEAK, Limits()) is None


def leak_beside_holes(holes: int, cap_left: int | None = None) -> LeakRow:
    """The verdict on live memory that grows by 1 MiB per step, beside holes that grow by `holes` bytes."""
    detector, limits = LeakDetector(on_cpu=True), Limits(host_free_bytes=20 * GIB)
    for step in range(1, STEPS + 1):
        row = a_row(step, GIB + step * MIB, rss=3 * GIB + step * (MIB + holes))
        detector.add_steps([row._replace(peak_allocated_bytes=GIB + step * MIB + GIB)], limits)
        detector.add_host(step, None, GIB + step * holes, cap_left)
    return next(row for row in detector.judge(0, limits) if row.series == LeakSeries.ALLOCATED)


def test_the_rate_of_the_process_is_stated_where_memory_runs_out_by_it() -> None:
    row = leak_beside_holes(3 * MIB, cap_left=2 * GIB)
    assert (row.verdict, row.bytes_per_step, row.steps_to_oom) == (LeakVerdict.LEAK, MIB, 512)
    assert "The process as a whole grows by 4.00 MiB per step: at that rate memory runs out" in row.message
    assert "At this rate memory runs out in" in leak_beside_holes(0, cap_left=2 * GIB).message


def test_no_distant_end_is_extrapolated_from_holes_that_may_settle() -> None:
    settling, steady = leak_beside_holes(3 * MIB), leak_beside_holes(0)
    assert (settling.verdict, settling.steps_to_oom) == (LeakVerdict.LEAK, None)
    assert "runs out" not in settling.message
    assert steady.steps_to_oom == 20 * GIB // MIB

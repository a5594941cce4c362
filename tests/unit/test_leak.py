"""Test which series of a run leaks, which only follows another, and what is said about it."""

import random
from collections.abc import Callable, Iterable

import pytest

from harness.analysis.leak.detector import LEAST_WHERE_STEPS_DIFFER, LeakDetector, ReadingFilter
from harness.analysis.leak.headroom import Limits
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import StepFlag, StepRow
from tests.leak_factories import GIB, MIB, a_row

STEPS = 400
LIMITS = Limits(10 * GIB, 20 * GIB)


def verdicts(
    rows: Iterable[StepRow],
    on_cpu: bool = False,
    heap_free: Callable[[int], int | None] = lambda _step: None,
    workers: Callable[[int], int | None] = lambda _step: None,
) -> dict[str, LeakRow]:
    """The verdicts after all rows, judged every tenth of them."""
    detector, result = LeakDetector(on_cpu=on_cpu), list[LeakRow]()
    for row in rows:
        detector.add_steps([row], LIMITS)
        detector.add_host(row.step, workers(row.step), heap_free(row.step))
        if row.step % 10 == 0:
            result = detector.judge(row.t_ns, LIMITS)
    return {row.series: row for row in result}


def leaking(result: dict[str, LeakRow]) -> set[str]:
    return {series for series, row in result.items() if row.verdict == LeakVerdict.LEAK}


def test_a_leak_of_live_tensors_says_how_fast_and_how_long_until_memory_runs_out() -> None:
    result = verdicts(a_row(step, GIB + step * MIB, 2 * GIB + step * MIB) for step in range(1, STEPS + 1))
    assert leaking(result) == {LeakSeries.ALLOCATED}
    row = result[LeakSeries.ALLOCATED]
    assert row.bytes_per_step == MIB
    assert row.steps_to_oom == 8 * GIB // MIB - STEPS
    assert "grown by 1.00 MiB per step" in row.message
    assert "about 7,800 steps" in row.message
    assert "withdrawn" in row.message


def test_the_steps_left_are_stated_before_a_leak_is_certain_if_they_are_few() -> None:
    def judged(leaked: int, steps: int) -> LeakRow:
        rows = (a_row(step, GIB + step * leaked, 2 * GIB + step * leaked) for step in range(1, steps + 1))
        return verdicts(rows)[LeakSeries.ALLOCATED]

    row = judged(40 * MIB, 80)
    assert (row.verdict, row.steps_to_oom) == (LeakVerdict.WATCH, 8 * GIB // (40 * MIB) - 80)
    assert "memory runs out in about 120 steps" in row.message
    assert 'too early for the verdict "leak"' in row.message
    row = judged(2 * MIB, 80)
    assert (row.verdict, row.steps_to_oom) == (LeakVerdict.WATCH, None)
    assert "runs out" not in row.message


def test_reserved_memory_that_rises_alone_is_fragmentation() -> None:
    result = verdicts(a_row(step, reserved=2 * GIB + step * MIB) for step in range(1, STEPS + 1))
    assert leaking(result) == {LeakSeries.FRAGMENTATION}
    assert "Live tensors are constant" in (result[LeakSeries.FRAGMENTATION].cause or "")


def test_fragmentation_that_has_reached_the_limit_is_not_taken_back() -> None:
    rows = (a_row(step, reserved=min(10 * GIB, 2 * GIB + step * 40 * MIB)) for step in range(1, 3 * STEPS))
    row = verdicts(rows)[LeakSeries.FRAGMENTATION]
    assert row.verdict == LeakVerdict.LEAK
    assert row.steps_to_oom == 0
    assert "The limit is reached" in row.message


def test_a_process_that_grows_while_tensors_do_not_leaks_on_the_host() -> None:
    result = verdicts(a_row(step, rss=3 * GIB + step * MIB) for step in range(1, STEPS + 1))
    assert leaking(result) == {LeakSeries.HOST}
    assert result[LeakSeries.HOST].steps_to_oom == 20 * GIB // MIB


def test_memory_that_profiles_retain_is_not_called_a_leak_on_the_host() -> None:
    def row(step: int) -> StepRow:
        captures, since = divmod(step, 40)
        flags = StepFlag.PROFILED if captures and since < 3 else 0
        return a_row(step, rss=3 * GIB + captures * 3 * MIB)._replace(flags=flags)

    assert not leaking(verdicts(row(step) for step in range(1, STEPS + 1)))


def test_a_leak_on_the_host_is_called_again_after_a_profile() -> None:
    rows = (
        a_row(step, rss=3 * GIB + step * MIB)._replace(flags=StepFlag.PROFILED if step == 200 else 0)
        for step in range(1, 2 * STEPS)
    )
    assert leaking(verdicts(rows)) == {LeakSeries.HOST}


def test_on_the_cpu_the_rss_that_tensors_take_is_not_held_against_the_host() -> None:
    rows = (a_row(step, GIB + step * MIB, rss=3 * GIB + step * MIB) for step in range(1, STEPS + 1))
    assert leaking(verdicts(rows, on_cpu=True)) == {LeakSeries.ALLOCATED}


def test_on_the_cpu_a_heap_of_holes_is_fragmentation_and_not_a_leak_on_the_host() -> None:
    rows = (a_row(step, rss=3 * GIB + step * MIB) for step in range(1, STEPS + 1))
    result = verdicts(rows, on_cpu=True, heap_free=lambda step: step * MIB)
    assert leaking(result) == {LeakSeries.FRAGMENTATION}
    assert "not by itself" in result[LeakSeries.HOST].message
    assert (result[LeakSeries.FRAGMENTATION].cause or "").startswith("Live memory is constant while the heap")


def test_live_memory_with_few_readings_is_not_called_constant() -> None:
    """As where graphs are kept: malloc then manages very many blocks, and is rarely read."""
    rows = [a_row(step, rss=3 * GIB + step * MIB) for step in range(1, STEPS + 1)]
    rows = [row if row.step % 50 == 0 else row._replace(allocated_bytes=None) for row in rows]
    result = verdicts(rows, on_cpu=True, heap_free=lambda step: step * MIB)
    assert result[LeakSeries.ALLOCATED].verdict == LeakVerdict.TOO_EARLY
    assert result[LeakSeries.FRAGMENTATION].cause == (
        "The heap keeps growing beyond live memory; it is too early to say whether live memory grows too: "
        "usually small long-lived objects, such as autograd nodes that are kept with a result, between large "
        "transient ones, each slightly larger than the existing holes."
    )


def test_live_tensors_that_grow_more_slowly_are_not_called_constant() -> None:
    rows = (a_row(step, GIB + step * MIB // 4, 2 * GIB + step * MIB) for step in range(1, STEPS + 1))
    cause = verdicts(rows)[LeakSeries.FRAGMENTATION].cause or ""
    assert cause.startswith(
        "Reserved memory keeps growing beyond live tensors, which grow too, but more slowly"
    )


def test_growth_that_live_tensors_explain_is_below_the_detection_limit() -> None:
    rows = (a_row(step, GIB + step * MIB, 2 * GIB + step * 5 * MIB // 2) for step in range(1, STEPS + 1))
    fragmentation = verdicts(rows)[LeakSeries.FRAGMENTATION]
    assert fragmentation.verdict == LeakVerdict.STEADY
    assert (fragmentation.detection_limit or 0) > (fragmentation.bytes_per_step or 0) > MIB


def test_growth_of_the_process_that_holes_explain_is_below_the_detection_limit() -> None:
    rows = (a_row(step, rss=3 * GIB + step * MIB) for step in range(1, STEPS + 1))
    host = verdicts(rows, on_cpu=True, heap_free=lambda step: step * MIB)[LeakSeries.HOST]
    assert (host.detection_limit or 0) > (host.bytes_per_step or 0) > MIB / 2


def test_a_leak_on_the_host_is_told_beside_a_slower_one_of_tensors() -> None:
    rows = (
        a_row(step, GIB + step * 16_384, rss=3 * GIB + step * (MIB + 16_384)) for step in range(1, STEPS + 1)
    )
    result = verdicts(rows, on_cpu=True)
    assert leaking(result) == {LeakSeries.ALLOCATED, LeakSeries.HOST}
    assert (result[LeakSeries.HOST].cause or "").startswith("The process grows more than its live tensors:")


def test_of_a_list_of_floats_the_part_outside_the_heap_is_named_too() -> None:
    """3,200 floats per step: 25.8 KiB of pointers on the heap, and 75 KiB of objects in Python's arenas."""
    kib = 1024
    rows = (
        a_row(step, GIB + step * 26_420, rss=3 * GIB + step * (26_420 + 100 * kib))
        for step in range(1, STEPS + 1)
    )
    result = verdicts(rows, on_cpu=True, heap_free=lambda _step: 5 * MIB)
    message = result[LeakSeries.ALLOCATED].message
    assert "grows by at least another 100 KiB per step outside the heap" in message
    assert "numbers, strings or records" in message
    tensors = (a_row(step, GIB + step * MIB, rss=3 * GIB + step * MIB) for step in range(1, STEPS + 1))
    assert "outside" not in verdicts(tensors, on_cpu=True)[LeakSeries.ALLOCATED].message


@pytest.mark.parametrize("heap_free", [lambda step: step * MIB, lambda _step: None])
def test_holes_in_the_heap_are_not_named_as_growth_outside_it(
    heap_free: Callable[[int], int | None],
) -> None:
    """Outputs that are kept among activations; also where the holes are not known yet."""
    rows = (
        a_row(step, GIB + step * 64_000, rss=3 * GIB + step * (MIB + 64_000)) for step in range(1, STEPS + 1)
    )
    message = verdicts(rows, on_cpu=True, heap_free=heap_free)[LeakSeries.ALLOCATED].message
    assert "outside the heap" not in message


def test_workers_that_grow_alone_leak() -> None:
    rows = (a_row(step) for step in range(1, STEPS + 1))
    result = verdicts(rows, workers=lambda step: GIB + step * MIB)
    assert leaking(result) == {LeakSeries.WORKERS}
    assert "data set" in (result[LeakSeries.WORKERS].cause or "")


def test_without_workers_nothing_is_said_about_them() -> None:
    assert LeakSeries.WORKERS not in verdicts(a_row(step) for step in range(1, 100))


def test_nothing_is_judged_while_the_first_steps_are_under_way() -> None:
    detector = LeakDetector(on_cpu=False)
    detector.add_steps([a_row(1)])
    assert [row.verdict for row in detector.judge(0)] == [LeakVerdict.WARM_UP]


def test_a_change_of_settings_starts_the_history_anew() -> None:
    rows = [a_row(step, GIB + step * MIB) for step in range(1, STEPS + 1)]
    changed = [row._replace(settings_version=2, step=row.step + STEPS) for row in rows[:30]]
    row = verdicts([*rows, *changed])[LeakSeries.ALLOCATED]
    assert row.verdict == LeakVerdict.TOO_EARLY
    assert row.since_step > STEPS


def test_small_leaks_on_the_device_beside_larger_ones_on_the_host_are_losses_with_their_graph() -> None:
    rows = (a_row(step, GIB + step * 8192, rss=3 * GIB + step * 20_000) for step in range(1, 4 * STEPS))
    result = verdicts(rows)
    assert LeakSeries.ALLOCATED in leaking(result)
    assert "graph" in (result[LeakSeries.ALLOCATED].cause or "")


def test_a_step_that_leaves_behind_what_it_needs_is_an_output_kept_with_its_graph() -> None:
    rows = [a_row(step, GIB + step * 10 * MIB) for step in range(1, STEPS + 1)]
    peaks = (row._replace(peak_allocated_bytes=(row.allocated_bytes or 0) + 12 * MIB) for row in rows)
    assert "kept with their graph" in (verdicts(peaks)[LeakSeries.ALLOCATED].cause or "")


def test_no_cause_is_named_where_nothing_speaks_for_one() -> None:
    result = verdicts(a_row(step, GIB + step * MIB) for step in range(1, STEPS + 1))
    assert result[LeakSeries.ALLOCATED].cause is None


def test_short_steps_that_share_a_reading_count_it_once() -> None:
    rows = [a_row(step, GIB + step // 10)._replace(t_ns=step * 2_000_000) for step in range(1, 101)]
    picked = ReadingFilter().pick(rows)
    assert [row.allocated_bytes for row in picked] == [GIB + part for part in range(11)]


def test_steps_that_read_the_same_again_count_each() -> None:
    assert len(ReadingFilter().pick([a_row(step) for step in range(1, 51)])) == 50


def test_what_is_not_measured_is_not_judged() -> None:
    rows = [
        a_row(step)._replace(allocated_bytes=None, reserved_bytes=None, rss_bytes=None)
        for step in range(1, 200)
    ]
    result = verdicts(rows)
    assert {row.verdict for row in result.values()} == {LeakVerdict.TOO_EARLY}
    assert result[LeakSeries.ALLOCATED].bytes_per_step is None


def test_a_heap_that_grows_is_not_called_a_leak_on_the_host_before_its_holes_are_known() -> None:
    rows = (a_row(step, rss=3 * GIB + step * MIB) for step in range(1, STEPS // 2))
    result = verdicts(rows, on_cpu=True, heap_free=lambda step: step * MIB if step > STEPS // 3 else None)
    assert result[LeakSeries.HOST].verdict != LeakVerdict.LEAK


def of_lengths(step: int, scale: float) -> StepRow:
    """A healthy step whose batch has a length of its own: holes grow for 300 steps, then no more."""
    live_bytes = GIB + min(step, 300) * MIB
    row = a_row(step, GIB, 2 * GIB + live_bytes)
    return row._replace(peak_allocated_bytes=GIB + int(scale * 500 * MIB))


def first_call(rows: Iterable[StepRow]) -> int | None:
    """The step at which anything is first called a leak, judged every tenth step."""
    detector = LeakDetector(on_cpu=False)
    for row in rows:
        detector.add_steps([row], LIMITS)
        if row.step % 10 == 0 and any(one.verdict == LeakVerdict.LEAK for one in detector.judge(0, LIMITS)):
            return row.step
    return None


def test_where_batches_differ_in_length_more_is_needed_to_call_a_leak() -> None:
    chance = random.Random(7)
    lengths = [chance.betavariate(2, 5) for _ in range(2_000)]
    assert first_call(of_lengths(step, lengths[step]) for step in range(1, 2_000)) is None
    alike = first_call(of_lengths(step, 0.3) for step in range(1, 2_000))
    assert alike is not None
    assert alike < 300


def test_the_readings_required_where_batches_differ_in_length_are_stated() -> None:
    chance = random.Random(7)
    for scales, required in (([0.3] * 40, 96), ([chance.betavariate(2, 5) for _ in range(40)], 384)):
        result = verdicts(of_lengths(step, scale) for step, scale in enumerate(scales, 1))
        assert f"after {required} readings" in result[LeakSeries.FRAGMENTATION].message
        assert "after 96 readings" in result[LeakSeries.ALLOCATED].message


def test_a_leak_where_batches_differ_in_length_is_called_later_and_called() -> None:
    chance = random.Random(7)
    rows = [of_lengths(step, chance.betavariate(2, 5)) for step in range(1, 1_000)]
    leaks = (row._replace(reserved_bytes=3 * GIB + row.step * MIB) for row in rows)
    called = first_call(leaks)
    assert called is not None
    assert LEAST_WHERE_STEPS_DIFFER <= called <= LEAST_WHERE_STEPS_DIFFER + 60


def test_steps_of_less_than_a_mebibyte_do_not_differ() -> None:
    chance = random.Random(7)
    rows = [a_row(step, GIB + step * MIB, 2 * GIB + step * MIB) for step in range(1, STEPS)]
    small = (r._replace(peak_allocated_bytes=(r.allocated_bytes or 0) + chance.randrange(MIB)) for r in rows)
    assert (first_call(small) or STEPS) < LEAST_WHERE_STEPS_DIFFER


def test_on_a_gpu_live_tensors_are_counted_exactly_and_need_no_more_where_batches_differ() -> None:
    chance = random.Random(7)
    rows = [a_row(step, GIB + step * MIB, 4 * GIB) for step in range(1, STEPS)]
    lengths = (row._replace(peak_allocated_bytes=2 * GIB + chance.randrange(GIB)) for row in rows)
    assert (first_call(lengths) or STEPS) < LEAST_WHERE_STEPS_DIFFER


def test_what_grows_as_inputs_grow_is_not_called_a_leak_before_or_after_they_stop_growing() -> None:
    rows = []
    for step in range(1, 2_000):
        needed = min(step, 1_000) * MIB
        row = a_row(step, GIB + needed // 8, 2 * GIB + 2 * needed)
        rows.append(row._replace(peak_allocated_bytes=GIB + needed // 8 + needed))
    assert first_call(rows) is None


def test_a_leak_beside_inputs_that_grow_more_slowly_is_called_meanwhile() -> None:
    rows = (
        a_row(step, GIB + step * MIB, 4 * GIB)._replace(
            peak_allocated_bytes=GIB + step * MIB + 50 * MIB + step * 2**15
        )
        for step in range(1, STEPS)
    )
    assert (first_call(rows) or STEPS) < STEPS // 2


def test_steps_of_which_no_peak_was_caught_do_not_make_steps_differ() -> None:
    chance = random.Random(7)
    rows = [a_row(step, reserved=2 * GIB + step * MIB) for step in range(1, STEPS)]
    caught = (row._replace(peak_allocated_bytes=GIB + chance.randrange(2) * 2 * MIB) for row in rows)
    assert (first_call(caught) or STEPS) < LEAST_WHERE_STEPS_DIFFER


def read_rarely(rows: Iterable[StepRow]) -> list[StepRow]:
    """Rows of which one in ten has the memory of live tensors, as where malloc has very many blocks."""
    return [
        row if row.step % 10 == 0 else row._replace(allocated_bytes=None, peak_allocated_bytes=None)
        for row in rows
    ]


def test_a_heap_that_is_rarely_read_is_judged_by_the_memory_of_the_process() -> None:
    rows = read_rarely(a_row(step, GIB + step * MIB, rss=3 * GIB + step * MIB) for step in range(1, STEPS))
    result = verdicts(rows, on_cpu=True)
    leak = result[LeakSeries.ALLOCATED]
    assert leaking(result) == {LeakSeries.ALLOCATED}
    assert leak.message.startswith("The memory of the process has grown by 1.00 MiB per step")
    assert leak.cause is not None
    assert leak.cause.startswith("The heap has so many blocks")


def test_a_leak_of_the_process_is_taken_back_once_it_does_not_grow() -> None:
    """As of a buffer that is full."""
    rows = read_rarely(
        a_row(step, GIB + min(step, STEPS) * MIB, rss=3 * GIB + min(step, STEPS) * MIB)
        for step in range(1, 2 * STEPS)
    )
    judged = verdicts(rows, on_cpu=True)[LeakSeries.ALLOCATED]
    assert judged.verdict == LeakVerdict.STEADY
    assert judged.message.startswith("The memory of the process shows no lasting growth")
    assert "detected" not in judged.message


def test_live_memory_is_judged_by_itself_once_it_has_enough_readings() -> None:
    rows = read_rarely(a_row(step, rss=3 * GIB + step * MIB) for step in range(1, 12 * STEPS))
    result = verdicts(rows, on_cpu=True)
    assert result[LeakSeries.ALLOCATED].verdict == LeakVerdict.STEADY

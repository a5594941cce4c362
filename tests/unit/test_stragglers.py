"""The rank that the others wait for, from the steps of all ranks."""

from collections.abc import Sequence
from functools import partial

import pytest

from harness.analysis.ranks.stragglers import LEAST_STEPS, RankComparison, compare_ranks
from harness.analysis.timing.phases import StepPart
from harness.records.run import StepFlag, StepRow
from tests.rank_steps import ALL_REDUCE_NS, BACKWARD_NS, MS, steps_of_ranks


def _compare(rows: dict[int, list[StepRow]]) -> RankComparison:
    comparison = compare_ranks(rows)
    assert comparison is not None
    return comparison


def _late(rows: dict[int, list[StepRow]]) -> tuple[int, StepPart] | None:
    late = _compare(rows).straggler
    return None if late is None else (late.rank, late.part)


def test_the_late_rank_is_named_with_its_phase_and_what_it_costs_everybody() -> None:
    for column, part in (("data_wait_ns", StepPart.DATA_WAIT), ("forward_ns", StepPart.FORWARD)):
        rows = steps_of_ranks(4, rank=2, column=column, by_ns=2 * MS)
        comparison = _compare(rows)
        late = comparison.straggler
        assert late is not None
        assert (late.rank, late.part) == (2, part)
        assert abs(late.late_ns - 2 * MS) < 0.1 * MS
        assert abs(late.share - 2 / 12) < 0.01
        assert "Rank 2 is late in " in comparison.sentence
        assert "17 % of every rank's time" in comparison.sentence
        waiting = [rank.waiting_ns for rank in comparison.ranks]
        assert waiting[2] == 0
        assert all(abs(ns - 2 * MS) < 0.2 * MS for at, ns in enumerate(waiting) if at != 2)


@pytest.mark.parametrize("column", ["data_wait_ns", "forward_ns", "backward_ns", "optimizer_ns"])
def test_where_the_wait_is_measured_the_late_rank_is_named_in_any_phase(column: str) -> None:
    rows = steps_of_ranks(4, has_waits=True, rank=2, column=column, by_ns=2 * MS)
    comparison = _compare(rows)
    late = comparison.straggler
    assert late is not None
    assert (late.rank, late.part) == (2, StepPart(column.removesuffix("_ns")))
    assert abs(late.late_ns - 2 * MS) < 0.2 * MS
    assert comparison.all_reduce_ns is not None
    assert abs(comparison.all_reduce_ns - ALL_REDUCE_NS) < 0.1 * MS
    waiting = [rank.waiting_ns for rank in comparison.ranks]
    assert all(abs(ns - (0 if at == 2 else 2 * MS)) < 0.2 * MS for at, ns in enumerate(waiting))


def test_without_the_wait_of_each_rank_a_late_backward_pass_is_not_told_from_waiting() -> None:
    rows = steps_of_ranks(2, has_waits=True, rank=1, column="backward_ns", by_ns=3 * MS)
    rows[0][-1] = rows[0][-1]._replace(all_reduce_wait_ns=None)
    comparison = _compare(rows)
    assert (comparison.straggler, comparison.all_reduce_ns) == (None, None)
    assert _late(steps_of_ranks(2, rank=1, column="backward_ns", by_ns=3 * MS)) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_backward_passes_that_vary_hide_no_straggler_and_make_none(seed: int) -> None:
    vary = partial(steps_of_ranks, 2, has_waits=True, backward_noise=0.2, seed=seed)
    assert _late(vary()) is None
    for column in ("forward_ns", "backward_ns"):
        part = StepPart(column.removesuffix("_ns"))
        assert _late(vary(rank=1, column=column, by_ns=2 * MS)) == (1, part)


def test_a_late_backward_pass_is_named_once_enough_steps_are_compared() -> None:
    late = partial(steps_of_ranks, 2, has_waits=True, rank=1, column="backward_ns", by_ns=2 * MS)
    assert _late(late(steps=79)) is None
    assert _late(late(steps=80)) == (1, StepPart.BACKWARD)


def test_a_rank_is_named_for_whom_the_others_wait_in_the_forward_pass() -> None:
    """As with batch normalization: each forward pass begins with a broadcast of its buffers."""
    rows = steps_of_ranks(3, has_waits=True, rank=1, column="optimizer_ns", by_ns=2 * MS)
    waiting = {
        rank: [
            row._replace(
                forward_ns=row.forward_ns + 2 * MS,
                backward_ns=row.backward_ns - 2 * MS,
                all_reduce_wait_ns=(row.all_reduce_wait_ns or 0) - 2 * MS,
                broadcast_wait_ns=2 * MS,
            )
            for row in rows[rank]
        ]
        for rank in (0, 2)
    }
    assert _late(rows | waiting) == (1, StepPart.OPTIMIZER)


def test_a_wait_longer_than_the_backward_pass_is_no_longer_than_it() -> None:
    rows = steps_of_ranks(2, has_waits=True)
    odd = {
        rank: [row._replace(all_reduce_wait_ns=10**15, broadcast_wait_ns=10**15) for row in rows[rank]]
        for rank in rows
    }
    assert all(0 < rank.own_ns < rank.step_ns for rank in _compare(odd).ranks)


@pytest.mark.parametrize("has_waits", [False, True])
def test_no_rank_is_named_where_all_are_alike_or_hardly_late(has_waits: bool) -> None:
    assert _late(steps_of_ranks(2, has_waits=has_waits)) is None
    hardly = steps_of_ranks(4, has_waits=has_waits, rank=1, column="forward_ns", by_ns=MS // 5)
    assert _late(hardly) is None
    assert _compare(steps_of_ranks(2)).sentence == "No rank keeps the others waiting (steps 1 to 100)."


def test_of_two_ranks_that_are_late_alike_none_is_named() -> None:
    """Without one of them, the others would wait for the other one."""
    rows = steps_of_ranks(4, rank=2, column="forward_ns", by_ns=2 * MS)
    assert _late({0: rows[0], 1: rows[1], 2: rows[2], 3: rows[2]}) is None


def test_a_rank_that_is_late_in_half_of_its_steps_alone_is_not_named() -> None:
    rows = steps_of_ranks(2, rank=1, column="forward_ns", by_ns=3 * MS)
    even = steps_of_ranks(2)
    mixed = {rank: [(rows if row.step % 2 else even)[rank][row.step - 1] for row in rows[0]] for rank in rows}
    assert _late(mixed) is None


def test_a_rank_that_does_not_keep_the_others_waiting_is_not_named() -> None:
    """Ranks that do not average gradients: one is slower, and nobody waits for it."""
    rows = steps_of_ranks(2, rank=1, column="forward_ns", by_ns=3 * MS)
    apart = [row._replace(backward_ns=BACKWARD_NS, step_ns=row.step_ns) for row in rows[0]]
    assert _late({0: apart, 1: rows[1]}) is None
    alone = {
        rank: [row._replace(all_reduce_wait_ns=MS // 1_000, broadcast_wait_ns=0) for row in rows_of_rank]
        for rank, rows_of_rank in {0: apart, 1: rows[1]}.items()
    }
    assert _late(alone) is None


def test_the_begin_of_the_lateness_is_found() -> None:
    late = _compare(steps_of_ranks(3, rank=0, column="data_wait_ns", by_ns=3 * MS, since=41)).straggler
    assert late is not None
    assert 40 <= late.since_step <= 42


def _without(rows: Sequence[StepRow], steps: range) -> list[StepRow]:
    return [row for row in rows if row.step not in steps]


def test_only_steps_that_every_rank_has_are_compared() -> None:
    rows = steps_of_ranks(2, rank=1, column="forward_ns", by_ns=2 * MS)
    rows[0] = _without(rows[0], range(1, 21))
    flagged = [row._replace(flags=int(StepFlag.PROFILED)) if row.step > 90 else row for row in rows[1]]
    comparison = _compare({0: rows[0], 1: flagged})
    assert (comparison.first_step, comparison.last_step, comparison.steps) == (21, 90, 70)
    assert comparison.straggler is not None


def test_steps_of_a_gpu_without_device_times_are_not_compared() -> None:
    """The phases of the others are device times, not the CPU's issue times, in which no rank is late."""
    late_ns = [0, 2 * MS]
    rows = {
        rank: [
            row._replace(
                device_step_ns=10 * MS + ns,
                device_gap_ns=0,
                device_forward_ns=2 * MS + ns,
                device_backward_ns=6 * MS - ns,
                device_optimizer_ns=2 * MS,
            )
            for row in steps_of_ranks(1)[0]
        ]
        for rank, ns in enumerate(late_ns)
    }
    untimed = rows[0][50]
    rows[0][50] = untimed._replace(device_step_ns=None, device_gap_ns=None, device_forward_ns=None)
    comparison = _compare(rows)
    assert untimed.step not in comparison.step_numbers
    assert _late(rows) == (1, StepPart.FORWARD)


def test_one_rank_or_few_common_steps_are_not_compared() -> None:
    rows = steps_of_ranks(2, steps=LEAST_STEPS - 1)
    assert compare_ranks(rows) is None
    assert compare_ranks({0: steps_of_ranks(1)[0]}) is None
    assert compare_ranks({}) is None


def test_clocks_are_aligned_by_the_common_end_of_backward_passes() -> None:
    comparison = _compare(steps_of_ranks(2, rank=1, column="data_wait_ns", by_ns=2 * MS))
    assert comparison.ranks[0].clock_offset_ns == 0
    assert abs(comparison.ranks[1].clock_offset_ns - 7 * MS) < 0.1 * MS
    assert comparison.ranks[1].clock_spread_ns < 0.1 * MS
    assert [rank.peak_allocated_bytes for rank in comparison.ranks] == [1 << 20, 2 << 20]

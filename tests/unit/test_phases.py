"""Step times: phases, rates, launch-bound steps, slow steps, and the verdict on the bottleneck."""

import pytest

from harness.analysis.timing.phase_change import compare
from harness.analysis.timing.phases import StepCost, StepPart, analyze
from harness.analysis.timing.slow_steps import slowest
from harness.analysis.timing.verdict import MIN_STEPS, Bound, verdict
from harness.records.run import StepFlag, StepRow
from tests.store_factories import an_event
from tests.timing_factories import a_timed_step, on_device, some_device_steps, some_steps

MS = 1e6


def bound_of(rows: list[StepRow], is_asynchronous: bool = False) -> Bound:
    return verdict(analyze(rows), is_asynchronous).bound


def test_shares_are_those_of_all_time_and_sum_to_one() -> None:
    timing = analyze(some_steps(wait=2.0, rest=1.0))
    assert timing.cpu is not None
    assert timing.cpu.step.p50 == 13 * MS
    assert timing.cpu.share(StepPart.DATA_WAIT) == pytest.approx(2 / 13)
    assert timing.cpu.share(StepPart.RESIDUAL) == pytest.approx(1 / 13)
    assert sum(entry.share for entry in timing.cpu.parts) == pytest.approx(1.0)


def test_communication_is_a_part_of_its_own_where_every_step_has_it() -> None:
    rows = [
        row._replace(all_reduce_wait_ns=row.backward_ns // 4, broadcast_wait_ns=row.forward_ns // 2)
        for row in some_steps()
    ]
    cpu, whole = analyze(rows).cpu, analyze(some_steps()).cpu
    assert cpu is not None
    assert whole is not None
    assert cpu.share(StepPart.BACKWARD) == pytest.approx(0.75 * whole.share(StepPart.BACKWARD))
    assert cpu.share(StepPart.FORWARD) == pytest.approx(0.5 * whole.share(StepPart.FORWARD))
    waits = 0.25 * whole.share(StepPart.BACKWARD) + 0.5 * whole.share(StepPart.FORWARD)
    assert cpu.share(StepPart.COMMUNICATION) == pytest.approx(waits)
    assert sum(entry.share for entry in cpu.parts) == pytest.approx(1.0)
    assert any("Communication with other ranks" in reason for reason in verdict(analyze(rows), False).why)
    rows[3] = rows[3]._replace(all_reduce_wait_ns=None)
    assert analyze(rows).cpu == whole


@pytest.mark.parametrize("part", ["data_wait", "h2d", "forward", "backward", "optimizer"])
def test_a_phase_that_nothing_measured_is_no_part_of_the_step(part: str) -> None:
    times_ns = {"h2d_ns": 500_000, f"{part}_ns": 0}
    rows = [row._replace(**times_ns) for row in some_steps(wait=2.0, rest=1.0)]
    cpu = analyze(rows).cpu
    assert cpu is not None
    parts = [entry.part for entry in cpu.parts]
    assert StepPart(part) not in parts
    assert len(parts) == 5
    assert sum(entry.share for entry in cpu.parts) == pytest.approx(1.0)


def test_steps_with_an_unknown_number_of_samples_have_no_part_in_the_throughput() -> None:
    rows = some_steps(20)
    throughput = analyze(rows).samples_per_s
    partly = [row._replace(samples=0) if row.step % 2 else row for row in rows]
    assert throughput is not None
    assert analyze(partly).samples_per_s == pytest.approx(throughput)
    assert analyze([row._replace(samples=0) for row in rows]).samples_per_s is None


def test_the_verdict_names_no_phase_that_nothing_measured() -> None:
    tensors_alone = verdict(analyze(some_steps(forward=0, rest=5.0)), False)
    assert tensors_alone.bound is Bound.OUTSIDE
    assert tensors_alone.why[0].endswith(" % (the forward pass was not measured).")
    no_backward = verdict(analyze(some_steps(backward=0, rest=50.0)), False)
    assert no_backward.why[0].startswith("The forward pass takes ")
    assert " (the backward pass was not measured)" in no_backward.why[0]
    replayed = verdict(analyze(some_steps(forward=0, backward=0, rest=50.0)), False)
    assert replayed.why[0].startswith("Forward and backward pass were not measured")
    compute = verdict(analyze(some_steps(forward=0, rest=1.0)), False)
    assert compute.sentence == "Compute-bound: 75 % of the time is spent in the backward pass."
    mixed = verdict(analyze(some_steps(backward=0, h2d=0.5, wait=1.0, optimizer=1.5, rest=0.5)), False)
    assert mixed.sentence == (
        "No phase dominates: the forward pass takes 46 % (the backward pass was not measured)."
    )
    no_optimizer = [
        verdict(analyze(some_steps(optimizer=0, **times)), False) for times in ({}, {"wait": 50.0})
    ]
    assert [one.bound for one in no_optimizer] == [Bound.COMPUTE, Bound.INPUT]
    assert no_optimizer[0].why[0].startswith("The time outside the phases, updates of the weights included,")
    assert no_optimizer[1].why[1].endswith(" %.")
    assert not any("optimizer" in why for one in no_optimizer for why in one.why)


def test_percentiles_are_those_of_the_steady_state_steps() -> None:
    rows = [a_timed_step(step, forward=step) for step in range(1, 102)]
    cpu = analyze(rows).cpu
    assert cpu is not None
    forward = cpu.spread(StepPart.FORWARD)
    assert forward is not None
    assert (forward.p50, forward.p95, forward.p99) == (51 * MS, 96 * MS, 100 * MS)


def test_flagged_steps_are_left_out_and_counted_and_untimed_ones_are_not() -> None:
    rows = some_steps(20)
    rows[0] = rows[0]._replace(flags=int(StepFlag.WARM_UP), forward_ns=10**12, step_ns=10**12)
    rows[5] = rows[5]._replace(flags=int(StepFlag.TRANSITION))
    rows[7] = rows[7]._replace(flags=int(StepFlag.PROFILED))
    rows[9] = rows[9]._replace(flags=int(StepFlag.UNTIMED))
    timing = analyze(rows)
    assert (timing.examined, timing.left_out) == (17, 3)
    assert timing.cpu is not None
    assert timing.cpu.step.p99 == 10 * MS


def test_without_steps_there_is_no_timing() -> None:
    timing = analyze([])
    assert timing[:4] == (None, None, 0, 0)
    assert timing.cpu is None
    assert timing.samples_per_s is None
    assert verdict(timing, False).bound is Bound.TOO_FEW


def test_a_device_without_a_clock_has_no_times() -> None:
    timing = analyze(some_steps())
    assert timing.device is None
    assert timing.launch is None


def test_on_the_device_parts_and_gap_sum_to_the_period() -> None:
    rows = some_device_steps(gap=2.0, parts=(0.5, 3.0, 6.0, 0.5))
    device = analyze(rows).device
    assert device is not None
    assert device.step.p50 == 10 * MS
    assert device.share(StepPart.GAP) == pytest.approx(2 / 12)
    assert sum(entry.share for entry in device.parts) == pytest.approx(1.0)


def test_throughput_is_samples_over_the_time_of_steady_state_steps() -> None:
    rows = [row._replace(samples=32, tokens=320) for row in some_steps(50)]
    timing = analyze(rows)
    assert timing.samples_per_s == pytest.approx(3_200)
    assert timing.tokens_per_s == pytest.approx(32_000)
    assert analyze(some_steps()).tokens_per_s is None


def test_mfu_counts_each_operation_once_and_weighs_settings_by_their_peaks() -> None:
    rows = [row._replace(samples=1, settings_version=1 + row.step % 2) for row in some_steps(50)]
    costs = {1: StepCost(1e9, 1.3e9, 1e12), 2: StepCost(1e9, 1e9, 2e12)}
    timing = analyze(rows, costs)
    assert timing.model_flops_per_s == pytest.approx(1e11)
    assert timing.executed_flops_per_s == pytest.approx(1.15e11)
    assert timing.mfu == pytest.approx(1e11 / 1.5e12)


@pytest.mark.parametrize("costs", [{}, {1: StepCost(1e9, 1e9, None)}])
def test_without_cost_or_peak_there_is_no_mfu(costs: dict[int, StepCost]) -> None:
    rows = [row._replace(settings_version=1) for row in some_steps()]
    timing = analyze(rows, costs)
    assert timing.mfu is None
    assert (timing.model_flops_per_s is None) == (not costs)


def test_pauses_between_steps_are_measured() -> None:
    rows = some_steps(30)
    later = [row._replace(t_ns=row.t_ns + 5_000_000_000) for row in rows[15:]]
    assert analyze(rows).between_steps_ns == 0
    assert analyze(rows[:15] + later).between_steps_ns == 5_000_000_000
    assert analyze(rows[::2]).between_steps_ns is None


def test_around_steps_that_were_not_recorded_the_time_between_steps_is_unknown() -> None:
    rows = some_steps(30)
    later = [row._replace(t_ns=row.t_ns + 5_000_000_000) for row in rows[20:]]
    timing, whole = analyze(rows[:10] + rows[12:20] + later), analyze(rows)
    assert timing.between_steps_ns == 5_000_000_000
    assert whole.wall_ns is not None
    assert timing.wall_ns == whole.wall_ns - (rows[12].t_ns - rows[9].t_ns) + 5_000_000_000


@pytest.mark.parametrize("rows", [some_steps(30), some_device_steps(30, gap=0.1, parts=(0, 0.4, 0.4, 0.1))])
def test_much_time_between_the_steps_is_mentioned(rows: list[StepRow]) -> None:
    for share, is_mentioned in ((0.15, False), (0.25, True)):
        between_ns = int(rows[0].step_ns * share / (1 - share))
        spread = [row._replace(t_ns=row.t_ns + at * between_ns) for at, row in enumerate(rows)]
        result = verdict(analyze(spread), rows[0].device_step_ns is not None)
        assert any("25 % of the wall time" in line for line in result.why) == is_mentioned
        assert ("between the steps" in result.next[0]) == is_mentioned


def test_phases_that_exceed_their_step_are_counted() -> None:
    rows = some_steps(20)
    rows[3] = rows[3]._replace(forward_ns=rows[3].step_ns)
    assert analyze(rows).unsound_steps == 1


@pytest.mark.parametrize(
    ("times", "bound"),
    [
        ({"wait": 3.0}, Bound.INPUT),
        ({"wait": 2.4}, Bound.COMPUTE),
        ({"h2d": 1.5}, Bound.TRANSFER),
        ({"optimizer": 4.5}, Bound.OPTIMIZER),
        ({"rest": 4.0}, Bound.OUTSIDE),
        ({"wait": 2.2, "optimizer": 2.2, "rest": 2.0, "forward": 1.0, "backward": 4.0}, Bound.MIXED),
        ({}, Bound.COMPUTE),
    ],
)
def test_the_cpu_clock_gives_a_verdict_where_work_is_synchronous(
    times: dict[str, float], bound: Bound
) -> None:
    assert bound_of(some_steps(**times)) is bound


@pytest.mark.parametrize(
    ("gap", "parts", "times", "bound"),
    [
        pytest.param(
            5.0, (0.1, 3.0, 6.0, 0.5), {"wait": 6.0, "forward": 2.0, "backward": 5.0}, Bound.INPUT, id="in"
        ),
        pytest.param(
            0.01,
            (0.1, 3.0, 6.0, 0.9),
            {"wait": 4.0, "forward": 2.0, "backward": 3.0},
            Bound.COMPUTE,
            id="hid",
        ),
        pytest.param(0.4, (0.1, 3.0, 5.9, 1.0), {"wait": 0.2, "rest": 0.3}, Bound.LAUNCH, id="launch"),
        pytest.param(0.005, (0.1, 3.0, 6.0, 1.0), {"rest": 0.1}, Bound.COMPUTE, id="full queue"),
        pytest.param(0.005, (2.0, 3.0, 6.0, 1.0), {"rest": 0.1}, Bound.TRANSFER, id="copy"),
        pytest.param(
            4.0, (0.1, 3.0, 6.0, 1.0), {"forward": 1.0, "backward": 2.0, "rest": 9.0}, Bound.OUTSIDE, id="out"
        ),
        pytest.param(0.005, (0.1, 2.0, 3.0, 3.0), {"rest": 0.1}, Bound.OPTIMIZER, id="optimizer"),
    ],
)
def test_on_an_asynchronous_device_the_devices_clock_decides(
    gap: float, parts: tuple[float, ...], times: dict[str, float], bound: Bound
) -> None:
    assert bound_of(some_device_steps(gap=gap, parts=parts, **times), is_asynchronous=True) is bound


def test_waits_between_micro_batches_starve_the_device_too() -> None:
    rows = some_device_steps(gap=0.1, parts=(0.1, 3.0, 6.0, 0.9), wait=6.0, forward=2.0, backward=5.0)
    rows = [row._replace(device_step_ns=(row.device_step_ns or 0) + 4_000_000) for row in rows]
    assert bound_of(rows, is_asynchronous=True) is Bound.INPUT


def test_launch_bound_is_stated_with_both_times() -> None:
    rows = some_device_steps(gap=0.4, parts=(0.1, 3.0, 5.9, 1.0), wait=0.2, rest=0.3)
    result = verdict(analyze(rows), True)
    assert "Launch-bound: in 100 % of the steps" in result.sentence
    assert "The CPU issues a step in 10.0 ms, the device executes it in 10.0 ms" in result.why[0]


def test_issue_times_alone_are_no_evidence() -> None:
    result = verdict(analyze(some_steps(wait=50.0)), True)
    assert result.bound is Bound.TOO_FEW
    assert "issue times alone" in result.sentence


def test_too_few_steps_say_how_many_there_are() -> None:
    rows = some_steps(MIN_STEPS - 1, wait=50.0)
    assert verdict(analyze(rows), False).sentence.endswith("15 of 16 steady-state steps.")
    assert bound_of([*rows, a_timed_step(99, wait=50.0)]) is Bound.INPUT


def test_a_long_tail_is_mentioned_in_the_verdict() -> None:
    rows = some_steps(200)
    rows[10:14] = [a_timed_step(step, rest=30.0) for step in range(11, 15)]
    assert any("One step in a hundred" in why for why in verdict(analyze(rows), False).why)
    assert not any("One step" in why for why in verdict(analyze(some_steps(200)), False).why)


def test_slow_steps_come_first_the_slowest_with_their_phase_and_events() -> None:
    rows = some_steps(200)
    rows[49] = a_timed_step(50, wait=40.0)
    rows[99] = a_timed_step(100, forward=12.0, backward=16.0, optimizer=11.0)
    rows[149] = a_timed_step(150, rest=90.0)._replace(flags=int(StepFlag.TRANSITION))
    event = an_event(step=50)._replace(label="empty_cache()")
    slow_steps = slowest(rows, analyze(rows).cpu, [event])
    assert [slow.step for slow in slow_steps] == [50, 100]
    assert slow_steps[0][2:] == (5.0, StepPart.DATA_WAIT, 40_000_000, ("empty_cache()",))
    assert (slow_steps[1].part, slow_steps[1].happened) == (None, ())


def test_a_step_that_waits_for_other_ranks_is_slow_for_communication() -> None:
    later_ns, wait_ns = 40_000_000, 2_000_000
    rows = [row._replace(all_reduce_wait_ns=wait_ns, broadcast_wait_ns=0) for row in some_steps(100)]
    waits = rows[50]
    rows[50] = waits._replace(
        step_ns=waits.step_ns + 2 * later_ns,
        backward_ns=waits.backward_ns + 2 * later_ns,
        all_reduce_wait_ns=wait_ns + 2 * later_ns,
    )
    rows[80] = rows[80]._replace(step_ns=rows[80].step_ns + later_ns)
    slow_steps = slowest(rows, analyze(rows).cpu, [])
    assert [slow.part for slow in slow_steps] == [StepPart.COMMUNICATION, StepPart.RESIDUAL]
    assert slow_steps[0].part_ns == wait_ns + 2 * later_ns


def test_equal_steps_have_no_slowest() -> None:
    rows = some_steps(50)
    assert slowest(rows, analyze(rows).cpu, []) == []


def test_two_ranges_are_compared_on_their_common_clock() -> None:
    plain = analyze(some_steps())
    timed = analyze(some_device_steps(gap=1.0, parts=(1.0, 2.0, 3.0, 1.0)))
    half = analyze(
        [on_device(row, gap=1.0, parts=(1.0, 1.0, 3.0, 1.0)) for row in some_steps(20, forward=1.5)]
    )
    mixed, both = compare(plain, timed), compare(timed, half)
    assert mixed is not None
    assert both is not None
    assert not mixed.is_device
    assert both.is_device
    changes = {change.part: change.percent for change in both.changes}
    assert changes[StepPart.FORWARD] == pytest.approx(-50)
    assert changes[StepPart.BACKWARD] == pytest.approx(0)
    assert changes[None] == pytest.approx(-15)
    assert compare(plain, analyze([])) is None


def test_a_difference_from_zero_has_no_percentage() -> None:
    result = compare(analyze(some_steps()), analyze(some_steps(rest=1.0)))
    assert result is not None
    assert {change.part: change.percent for change in result.changes}[StepPart.RESIDUAL] is None


def test_a_part_that_one_range_does_not_have_is_not_compared() -> None:
    result = compare(analyze(some_steps()), analyze(some_steps(wait=1.0)))
    assert result is not None
    assert StepPart.DATA_WAIT not in [change.part for change in result.changes]


def test_without_a_loader_there_is_no_data_wait() -> None:
    timing = analyze(some_steps())
    assert timing.cpu is not None
    assert StepPart.DATA_WAIT not in [entry.part for entry in timing.cpu.parts]
    assert sum(entry.share for entry in timing.cpu.parts) == pytest.approx(1)
    result = verdict(timing, False)
    assert "loader" not in " ".join([result.sentence, *result.why])

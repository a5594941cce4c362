"""Measurement of a change in a live run: its blocks, and what ends it."""

import json
from collections import Counter
from typing import Any

import pytest

from harness.analysis.oom.report import OomPhase, OomVerdict
from harness.device.nvml.energy import EnergyMeter
from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.records.measurement import Arm, ConclusiveRequest, MeasurementEnd
from harness.records.run import CommandKind, CommandState, EventKind
from harness.train.policies import PolicyResult, apply_policy
from harness.watch.measured_blocks import (
    BLOCK_NS,
    BLOCK_STEPS,
    DISCARDED_NS,
    DISCARDED_STEPS,
    MOST_PARTS,
    balanced_orders,
)
from harness.watch.measuring import JUDGE_NS, Measuring
from harness.watch.steps import Steps
from tests.measuring_factories import MEASURED, STEP_NS, MeasuredRun
from tests.train_factories import raising

LONG = 2_000


@pytest.fixture
def run() -> MeasuredRun:
    return MeasuredRun()


def test_all_pairs_are_measured_and_the_settings_are_those_before_again(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    run.take(LONG)
    (plan,), (end,) = run.plans, run.ends
    assert (plan.before, plan.after, plan.pairs) == ('{"amp": "off"}', '{"amp": "bf16"}', 8)
    assert [block.pair for block in run.blocks] == [1 + number // 2 for number in range(16)]
    assert end.state == MeasurementEnd.COMPLETED
    assert run.workload.settings.amp == "off"
    (ack,) = run.journal.acks
    assert (ack.command_id, ack.state) == (MEASURED, CommandState.APPLIED)
    (event,) = run.journal.events
    assert (event.kind, event.command_id) == (EventKind.MEASUREMENT, MEASURED)
    assert "AMP off → bf16: 8 pairs. All pairs" in event.message


def test_each_arm_runs_under_its_own_settings(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    run.take(LONG)
    versions = {row.version: json.loads(row.settings)["amp"] for row in run.journal.settings}
    amps = {Arm.A: "off", Arm.B: "bf16"}
    assert all(versions.get(block.settings_version, "off") == amps[Arm(block.arm)] for block in run.blocks)
    assert {row.command_id for row in run.journal.settings} == {MEASURED}


def test_each_arm_has_one_version_of_the_settings_however_often_the_run_switches(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    run.finish(1_000_000)
    assert [row.version for row in run.journal.settings] == [2, 3]
    assert {block.arm: block.settings_version for block in run.blocks} == {Arm.B: 2, Arm.A: 3}
    assert run.marks.settings_version == run.marks.newest_version == 3


@pytest.mark.parametrize("steps", range(400, 800, 40))
def test_after_a_version_that_begins_in_between_the_newest_one_has_the_settings_before(steps: int) -> None:
    run = MeasuredRun()
    run.measure(amp="bf16")
    run.take(steps)
    run.marks.begin_version()
    run.take(LONG)
    assert run.ends
    newest = run.journal.settings[-1]
    assert 6 <= newest.version <= 7
    assert (json.loads(newest.settings)["amp"], run.marks.settings_version) == ("off", newest.version)


def test_half_of_the_pairs_begin_with_either_arm_in_random_order() -> None:
    orders = [balanced_orders(20, str(seed)) for seed in range(50)]
    assert all(order.count((Arm.A, Arm.B)) == 10 for order in orders)
    assert len({tuple(order) for order in orders}) == 50
    assert {balanced_orders(9, str(seed)).count((Arm.A, Arm.B)) for seed in range(50)} == {4, 5}


@pytest.mark.slow
@pytest.mark.parametrize("step_ns", [STEP_NS, 100_000_000, 1_000_000])
def test_a_block_has_thirty_steps_and_half_a_second_after_the_transition(step_ns: int) -> None:
    run = MeasuredRun()
    run.measure(amp="bf16")
    run.finish(step_ns)
    sums_ns = Counter[tuple[int, str]]()
    for before, block in zip([None, *run.blocks], run.blocks, strict=False):
        assert block.last_step - block.first_step + 1 >= BLOCK_STEPS
        sums_ns[block.pair, block.arm] += block.t_ns - block.began_ns
        if before is not None:
            assert block.first_step - before.last_step > DISCARDED_STEPS
            assert block.began_ns - before.t_ns >= DISCARDED_NS // MOST_PARTS
    assert len(sums_ns) == 16
    assert min(sums_ns.values()) >= BLOCK_NS


@pytest.mark.parametrize(
    ("step_ns", "change", "parts"),
    [
        (1_000_000, {"amp": "bf16"}, MOST_PARTS),
        (5_000_000, {"amp": "bf16"}, 3),
        (100_000_000, {"amp": "bf16"}, 1),
        (1_000_000, {"batch_size": 16}, 1),
        (1_000_000, {"amp": "bf16", "batch_size": 16}, 1),
    ],
)
def test_blocks_of_short_steps_alternate_in_parts_where_a_change_takes_effect_at_once(
    step_ns: int, change: dict[str, Any], parts: int
) -> None:
    run = MeasuredRun()
    run.measure(**change)
    while not run.blocks:
        run.take(1, step_ns)
    arms = "".join(block.arm for block in run.blocks if block.pair == 1)
    assert arms in {("ABBA" * 3)[: 2 * parts], ("BAAB" * 3)[: 2 * parts]}
    assert [block.position for block in run.blocks] == list(range(1, 2 * parts + 1))


def test_what_cuts_into_a_part_repeats_the_whole_pair(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    while not run.blocks:
        run.take(1, 1_000_000)
    run.take(300, 1_000_000)
    run.request(CommandKind.PAUSE)
    run.request(CommandKind.RESUME, "c2")
    run.finish(1_000_000)
    assert Counter(block.pair for block in run.blocks) == dict.fromkeys(range(1, 9), 2 * MOST_PARTS)


def test_a_pair_that_a_pause_cuts_into_is_measured_again(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    run.take(500)
    measured = len(run.blocks)
    run.request(CommandKind.PAUSE)
    run.request(CommandKind.RESUME)
    paused_at = run.step + 1
    run.take(LONG)
    assert run.ends[0].state == MeasurementEnd.COMPLETED
    assert len(run.blocks) == 16
    assert run.blocks[measured].first_step > paused_at


def test_a_measurement_that_is_cut_into_again_and_again_ends(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    for _ in range(30):
        run.request(CommandKind.EMPTY_CACHE)
        run.take(20)
    assert run.ends[0].state == MeasurementEnd.FAILED
    assert "interrupted too often" in run.ends[0].message
    assert run.workload.settings.amp == "off"


@pytest.mark.slow
def test_it_can_be_ended_at_any_moment_with_what_it_has() -> None:
    for steps in range(1, 400, 23):
        run = MeasuredRun()
        run.measure(amp="bf16")
        run.take(steps)
        run.request(CommandKind.END_MEASUREMENT, "e1")
        run.take(1)
        assert run.ends[0].state == MeasurementEnd.STOPPED
        assert run.workload.settings.amp == "off"
        assert len(run.blocks) % 2 == 0
        run.take(LONG)
        assert len(run.ends) == 1


def test_ending_without_a_measurement_is_rejected(run: MeasuredRun) -> None:
    run.request(CommandKind.END_MEASUREMENT)
    run.take(1)
    (ack,) = run.journal.acks
    assert (ack.state, ack.message) == (CommandState.REJECTED, "No such measurement is in progress.")


def test_it_is_judged_after_a_quarter_and_half_of_the_pairs_and_goes_on_meanwhile(run: MeasuredRun) -> None:
    run.measure(64, amp="bf16")
    judged: list[int] = []
    while not run.ends:
        run.take(1)
        if numbers := run.measuring.to_judge.numbers:
            assert numbers == [1]
            numbers.clear()
            judged.append(len(run.blocks) // 2)
    assert judged == [16, 32]
    assert len(run.blocks) == 128


def test_while_a_judge_computes_no_block_is_measured_for_a_limited_time(run: MeasuredRun) -> None:
    run.measure(64, amp="bf16")
    queue = run.measuring.to_judge
    while not queue.numbers:
        run.take(1)
    queue.numbers.clear()
    queue.is_judging = True
    while len(run.blocks) == 32:
        run.take(1)
    looked, last = run.blocks[31:33]
    assert last.began_ns - looked.t_ns >= JUDGE_NS
    queue.is_judging = False
    run.take(LONG)
    following = run.blocks[33]
    assert following.began_ns - last.t_ns < 1_000_000_000


def test_a_conclusive_measurement_is_completed_before_its_last_pair(run: MeasuredRun) -> None:
    run.measure(64, amp="bf16")
    while not run.measuring.to_judge.numbers:
        run.take(1)
    run.take(10)
    run.request(CommandKind.END_MEASUREMENT, "conclusive", **ConclusiveRequest(1, 16)._asdict())
    run.take(1)
    (end,) = run.ends
    assert end.state == MeasurementEnd.COMPLETED
    assert end.message.startswith("Conclusive after 16 pairs.")
    assert run.workload.settings.amp == "off"


def test_the_judge_of_an_earlier_measurement_ends_no_other(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    run.take(20)
    run.request(CommandKind.END_MEASUREMENT, "late", **ConclusiveRequest(7, 16)._asdict())
    run.take(20)
    assert not run.ends
    assert run.journal.acks[-1].state == CommandState.REJECTED


def test_a_change_of_settings_ends_it_and_applies_to_the_settings_before(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    run.take(20)
    assert run.workload.settings.amp == "bf16"
    run.request(CommandKind.SET, batch_size=4)
    run.take(LONG)
    (end,) = run.ends
    assert end.state == MeasurementEnd.CHANGED
    assert "Settings were changed by the test." in end.message
    assert (run.workload.settings.amp, run.workload.settings.batch_size) == ("off", 4)


def test_a_second_request_is_rejected_while_one_is_in_progress(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    run.take(20)
    run.measure(command_id="m2", batch_size=4)
    run.take(1)
    ack = run.journal.acks[-1]
    assert (ack.command_id, ack.state) == ("m2", CommandState.REJECTED)
    assert "AMP off → bf16, pair 1 of 8" in ack.message
    run.take(LONG)
    assert len(run.plans) == 1
    assert run.ends[0].state == MeasurementEnd.COMPLETED


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"settings": {"amp": "off"}}, "already in effect"),
        ({"settings": {"model": "cnn"}}, "cannot change while a run goes on"),
        ({"settings": {"amp": "fp8"}}, "fp8"),
        ({"settings": {}}, "nothing to measure"),
        ({"settings": {"amp": "bf16"}, "pairs": 2}, "pairs is 2"),
        ({"settings": {"amp": "bf16"}, "pairs": "many"}, "pairs is 'many'"),
        ({}, "nothing to measure"),
    ],
)
def test_an_invalid_request_is_rejected_with_the_reason(
    run: MeasuredRun, payload: dict[str, Any], reason: str
) -> None:
    run.request(CommandKind.MEASURE, **payload)
    run.take(50)
    (ack,) = run.journal.acks
    assert ack.state == CommandState.REJECTED
    assert reason in ack.message
    assert not run.plans


def test_settings_that_cannot_be_applied_end_it(run: MeasuredRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run.workload, "reconfigure", raising(RuntimeError("No such kernel.\nDetails.")))
    run.measure(amp="bf16")
    run.take(LONG)
    (end,) = run.ends
    assert (end.state, end.message) == (
        MeasurementEnd.FAILED,
        "The settings could not be applied: No such kernel.",
    )
    assert run.workload.settings.amp == "off"


@pytest.mark.parametrize("policy", ["stop", "rollback", "halve", "skip"])
def test_memory_that_runs_out_with_the_changed_settings_undoes_them_under_any_policy(policy: str) -> None:
    run = MeasuredRun(oom_policy=policy)
    run.measure(batch_size=64)
    run.take(20)
    remedy = apply_policy(run.live, run.workload, run.step, OomPhase.FORWARD, [], OomVerdict.TOO_BIG)
    assert isinstance(remedy, PolicyResult)
    assert run.workload.settings.batch_size == 8
    run.steps.boundary.changed(run.step)
    run.take(LONG)
    (end,) = run.ends
    assert end.state == MeasurementEnd.OUT_OF_MEMORY
    assert end.message == "Memory ran out with the changed settings."
    assert run.workload.settings.batch_size == 8


def test_a_run_that_ends_in_the_middle_says_so_with_what_there_is() -> None:
    run = MeasuredRun(max_steps=400)
    run.measure(amp="bf16")
    assert not run.take(LONG)
    (end,) = run.ends
    assert end.state == MeasurementEnd.RUN_ENDED
    assert run.blocks
    assert run.workload.settings.amp == "off"


def test_a_run_that_breaks_off_leaves_an_end_too(run: MeasuredRun) -> None:
    run.measure(amp="bf16")
    run.take(300)
    run.close()
    run.close()
    assert [end.state for end in run.ends] == [MeasurementEnd.RUN_ENDED]


@pytest.mark.parametrize("kind", [CommandKind.PROFILE, CommandKind.SNAPSHOT])
def test_no_capture_begins_meanwhile(run: MeasuredRun, kind: CommandKind) -> None:
    run.measure(amp="bf16")
    run.take(20)
    run.request(kind)
    run.take(1)
    ack = run.journal.acks[-1]
    assert ack.state == CommandState.REJECTED
    assert "A measurement is in progress" in ack.message


def test_a_block_has_the_energy_of_the_device_at_its_ends() -> None:
    gpu = FakeGpu()
    meter = EnergyMeter(gpu.uuid, FakeNvml([gpu]))
    run = MeasuredRun()
    action = Measuring(run.context, run.live, meter)
    steps = Steps(run.instruments, run.workload, [run.live, action])
    run.measure(amp="bf16")
    for step in range(1, LONG):
        steps.proceed(step)
        gpu.energy_mj += 500
        run.clock.now_ns += STEP_NS
    assert len(run.blocks) == 16
    for block in run.blocks:
        assert block.energy_j is not None
        assert block.began_energy_j is not None
        used_steps = block.last_step - block.first_step + 1
        assert block.energy_j - block.began_energy_j == pytest.approx(0.5 * used_steps)


def test_a_device_without_a_meter_has_no_energy(run: MeasuredRun) -> None:
    lost = FakeGpu()
    assert EnergyMeter(lost.uuid, FakeNvml([])).read_j() is None
    assert EnergyMeter(None).read_j() is None
    run.measure(amp="bf16")
    run.take(LONG)
    assert {block.energy_j for block in run.blocks} == {None}

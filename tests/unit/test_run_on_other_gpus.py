"""Runs on Intel's and Apple's GPUs, through the loop to finished rows. Only the hardware is fake."""

import json
from collections.abc import Callable

import pytest

from harness.device.protocol import Device
from harness.device.testing.accelerators import FakeMpsDevice, FakeXpuDevice
from harness.device.testing.device import FakeAllocator, FakeQueue
from harness.records.run import CommandKind, CommandState, StepRow
from harness.train.loop import train
from harness.watch.inbox import Inbox
from harness.watch.memory import MemoryWatch
from tests.train_factories import FakeJournal, a_command, a_workload, open_steps

MIB = 1 << 20
STEPS = 20


def a_model_and_its_step(allocator: FakeAllocator, step: int) -> None:
    if step == 1:
        allocator.allocate(200 * MIB)
    allocator.allocate(100 * MIB)
    allocator.free(100 * MIB)


class Trained:
    """A run of twenty steps on a device; `rows` is what its log would hold."""

    def __init__(self, device: Device, queue: FakeQueue, *commands: object) -> None:
        self.journal, inbox = FakeJournal(), Inbox()
        workload = a_workload(device, max_steps=STEPS)
        device.begin_memory()
        memory = MemoryWatch(device, shared_ns=0, cpu_ns=lambda: 0)  # Reads every step.
        instruments, _, steps, _ = open_steps(device, workload, self.journal, inbox=inbox, memory=memory)
        for command in commands:
            inbox.put(command)  # type: ignore[arg-type]  # commands all
        last_step = train(workload, steps)
        steps.close()
        assert last_step == STEPS
        waits_while_training = queue.waits
        device.synchronize()
        self.rows: list[StepRow] = instruments.recorder.collect()
        self.waits = waits_while_training


@pytest.mark.parametrize("make", [FakeXpuDevice, FakeMpsDevice], ids=["xpu", "mps"])
def test_a_run_is_timed_measured_and_steered(make: Callable[..., FakeXpuDevice | FakeMpsDevice]) -> None:
    queue = FakeQueue(mark_ns=1_000_000, lag_marks=10_000)
    device = make(queue=queue, script=a_model_and_its_step)
    capped = a_command(CommandKind.SET, json.dumps({"memory_cap_gib": 1.0}), "cap")
    emptied = a_command(CommandKind.EMPTY_CACHE, "{}", "empty")
    pinned = a_command(CommandKind.SET, json.dumps({"pin_memory": True}), "pin")
    run = Trained(device, queue, capped, emptied, pinned)
    assert run.waits == 0
    answers = {ack.command_id: ack for ack in run.journal.acks}
    assert [answers[name].state for name in ("cap", "empty")] == [CommandState.APPLIED] * 2
    assert answers["pin"].state == CommandState.REJECTED
    assert device.allocator.limit_bytes == 1 << 30
    assert [row.step for row in run.rows] == list(range(1, STEPS + 1))
    assert all(row.loss is not None and row.allocated_bytes is not None for row in run.rows)
    assert run.rows[-1].allocated_bytes == 200 * MIB
    timed = [row for row in run.rows if row.device_step_ns is not None]
    assert all(row.device_step_ns == 4_000_000 for row in timed)
    assert timed[1].device_gap_ns is not None
    assert (timed[1].device_forward_ns, timed[1].device_optimizer_ns) == (1_000_000, 1_000_000)


def test_intels_steps_are_all_timed_with_the_allocators_own_peak() -> None:
    queue = FakeQueue(lag_marks=10_000)
    run = Trained(FakeXpuDevice(queue=queue, script=a_model_and_its_step), queue)
    assert all(row.device_step_ns is not None for row in run.rows)
    assert run.rows[-1].peak_allocated_bytes == 300 * MIB
    assert run.rows[-1].peak_reserved_bytes is not None


def test_of_apples_steps_two_a_second_are_timed_and_none_is_flagged_for_the_rest() -> None:
    queue = FakeQueue(lag_marks=10_000)
    run = Trained(FakeMpsDevice(queue=queue, script=a_model_and_its_step), queue)
    timed = [row for row in run.rows if row.device_step_ns is not None]
    assert 2 <= len(timed) < STEPS
    assert len({row.flags for row in run.rows[5:]}) == 1
    assert run.rows[-1].peak_reserved_bytes is None

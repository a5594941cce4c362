"""Snapshots of a live run: when they are taken, what they answer, and what they leave behind."""

import gc
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.cuda import _memory_viz

from harness import words
from harness.device.cpu.heap import in_use, open_heap
from harness.device.protocol import AllocatorReading
from harness.records.memory import (
    AllocationRow,
    LeakVerdict,
    MemoryCategory,
    ModuleMemoryRow,
    SnapshotReason,
    SnapshotRow,
)
from harness.records.run import AckRow, CommandKind, CommandState, EventKind, EventRow, Severity, StepFlag
from harness.tracking.plain_pickle import load_plain
from harness.watch.capture.hunting import SOURCE, LeakHunt
from harness.watch.capture.snapshots import CENSUS_STEP
from harness.watch.inbox import Inbox
from tests.leak_factories import a_leak
from tests.train_factories import SteppedRun, a_command, a_device

pytestmark = pytest.mark.slow

MIB = 1 << 20


class Bench(SteppedRun):
    """A run whose allocator tells of a hole of 1 MiB."""

    def __init__(self, captures: Path, **values: Any) -> None:
        device = a_device()
        device.read_allocator = lambda: AllocatorReading(8 * MIB, MIB, 0, MIB, 1, 1)  # type: ignore[method-assign]
        super().__init__(captures, device, **values)

    def request(self, payload: str = "{}") -> None:
        self.inbox.put(a_command(CommandKind.SNAPSHOT, payload))

    @property
    def snapshot_rows(self) -> list[SnapshotRow]:
        return self.journal.of(SnapshotRow)

    @property
    def acks(self) -> list[AckRow]:
        return self.journal.of(AckRow)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    result = Bench(tmp_path / "captures")
    yield result
    result.close()


def parameter_bytes(bench: Bench) -> int:
    return sum(p.numel() * p.element_size() for p in bench.workload.model.parameters())


def test_once_after_the_warm_up_everything_is_counted(bench: Bench) -> None:
    update = bench.workload.update
    bench.run(12)
    (row,) = bench.snapshot_rows
    assert (row.reason, row.step, row.tracked_steps) == (SnapshotReason.START, CENSUS_STEP, 0)
    assert (row.allocated_bytes, row.reserved_bytes) == (7 * MIB, 8 * MIB)
    assert (row.file, row.slowdown) == (None, None)
    modules = bench.journal.of(ModuleMemoryRow)
    size = parameter_bytes(bench)
    assert sum(m.parameter_bytes for m in modules) == size
    assert sum(m.gradient_bytes for m in modules) == size
    assert bench.workload.update is update
    assert not bench.snapshots.is_busy


def test_rows_are_written_before_the_snapshot_they_belong_to(bench: Bench) -> None:
    bench.run(8)
    bench.request()
    bench.run(10)
    kinds = [type(row) for row in bench.journal.rows]
    for number, kind in enumerate(kinds):
        if kind is SnapshotRow:
            later = bench.journal.rows[number + 1 :]
            text = bench.journal.rows[number].snapshot_id
            assert not [r for r in later if getattr(r, "rank", None) and r.snapshot_id == text]


def test_a_snapshot_follows_three_steps_answers_and_marks_the_chart(bench: Bench, tmp_path: Path) -> None:
    bench.run(10)
    bench.request()
    bench.run(10)
    row = bench.snapshot_rows[-1]
    assert (row.reason, row.tracked_steps, row.step) == (SnapshotReason.REQUESTED, 3, 16)
    assert [s for s, flags in bench.flags.items() if flags & StepFlag.TRACKED] == [14, 15, 16]
    assert row.slowdown is not None
    (ack,) = bench.acks
    assert (ack.state, ack.message) == (CommandState.APPLIED, row.message)
    (event,) = bench.journal.of(EventRow)
    assert (event.kind, event.label, event.command_id) == (EventKind.SNAPSHOT, "snapshot", "c1")
    assert json.loads(event.detail)["snapshot_id"] == row.snapshot_id
    assert row.file is not None
    assert (tmp_path / "captures" / row.file).stat().st_size == row.file_bytes


def test_pytorchs_own_reader_understands_the_file(bench: Bench, tmp_path: Path) -> None:
    bench.request('{"steps": 2}')
    bench.run(4)
    row = bench.snapshot_rows[-1]
    assert row.file is not None
    snapshot = load_plain((tmp_path / "captures" / row.file).read_bytes())
    entries = len(snapshot["device_traces"][0])
    assert f"\n{entries} entries\n" in _memory_viz.trace(snapshot)
    assert f"segments: {len(snapshot['segments'])}\n" in _memory_viz.segsum(snapshot)


def test_its_categories_sum_to_what_is_explained_and_weights_are_the_parameters(bench: Bench) -> None:
    bench.run(6)
    bench.request('{"steps": 2}')
    bench.run(10)
    row = bench.snapshot_rows[-1]
    sites = [r for r in bench.journal.of(AllocationRow) if r.snapshot_id == row.snapshot_id]
    assert sum(site.held_bytes for site in sites) == row.explained_bytes
    assert row.allocated_bytes is not None
    assert row.explained_bytes is not None
    assert row.allocated_bytes >= row.explained_bytes
    weights = sum(s.held_bytes for s in sites if s.category == MemoryCategory.WEIGHTS)
    assert weights == parameter_bytes(bench)


@pytest.mark.parametrize(("allocated_bytes", "has_others"), [(64 * MIB, True), (1, False)])
def test_memory_beside_tensors_is_not_in_the_parts_that_are_named(
    bench: Bench, allocated_bytes: int, has_others: bool
) -> None:
    reading = AllocatorReading(allocated_bytes, 0, 0, 0, 1, 1)
    bench.device.read_allocator = lambda: reading  # type: ignore[method-assign]
    bench.run(6)
    bench.request('{"steps": 2}')
    bench.run(10)
    row = bench.snapshot_rows[-1]
    tensors = words.size(row.explained_bytes)
    parts = f", of which {tensors} are tensors: " if has_others else ": "
    text = f"In 2 steps at most {words.size(row.allocated_bytes)} were allocated{parts}"
    assert row.message.startswith(text), row.message


@pytest.mark.parametrize("array", [lambda: np.ones(16_384), lambda: bytes(131_072), lambda: None])
def test_the_hunt_says_where_the_heap_grows_by_other_memory_than_tensors(
    bench: Bench, array: Callable[[], object]
) -> None:
    heap = open_heap()
    if heap is None:
        pytest.skip("malloc cannot be read here")
    gc.collect()  # The heap is to shrink by nothing of earlier tests.
    device = bench.context.device
    device.read_allocator = lambda: AllocatorReading(in_use(heap.info()), 0, 0, 0, 0, 1)  # type: ignore[method-assign]
    retained: list[object] = []
    forward = bench.workload.forward

    def leaky(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        retained.append(array())
        return forward(inputs, targets)

    bench.workload.forward = leaky
    bench.run(8)
    LeakHunt(bench.inbox, lambda: True).on_leak(a_leak()._replace(bytes_per_step=131_072.0), None)
    bench.run(20)
    message, result = bench.snapshot_rows[-1].message, bench.snapshots.hunt_result
    assert result is not None
    assert result.is_beside_tensors is (array() is not None)
    grown = re.match(r"In 10 steps the heap grew by (\d+) KiB per step, ", message)
    # Other parts of the heap may shrink meanwhile.
    assert (grown is not None and 120 <= int(grown[1]) < 160) is (array() is not None), message
    assert ("No allocation site" in message) is (array() is None)


def test_a_list_that_keeps_tensors_is_the_first_suspect(bench: Bench) -> None:
    retained: list[torch.Tensor] = []
    forward = bench.workload.forward

    def leaky(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        retained.append(torch.ones(65_536))
        return forward(inputs, targets)

    bench.workload.forward = leaky
    bench.run(6)
    bench.request('{"steps": 6}')
    bench.run(12)
    row = bench.snapshot_rows[-1]
    sites = [r for r in bench.journal.of(AllocationRow) if r.snapshot_id == row.snapshot_id]
    worst = max(sites, key=lambda site: site.grown_bytes or 0)
    assert worst.site.startswith("tests/unit/test_snapshots.py:")
    assert (worst.grown_blocks, worst.grown_bytes) == (4, 4 * 2**18)
    assert "4 steps retained 1.00 MiB in 4 blocks" in row.message


@pytest.mark.parametrize(
    "payload", ['{"steps": 0}', '{"steps": 51}', '{"steps": "x"}', "[]", "{", '{"steps": true}']
)
def test_what_cannot_be_followed_is_rejected_with_the_reason(bench: Bench, payload: str) -> None:
    bench.request(payload)
    bench.run(1)
    (ack,) = bench.acks
    assert ack.state == CommandState.REJECTED
    assert "50" in ack.message or "JSON" in ack.message


def test_only_one_snapshot_is_taken_at_a_time(bench: Bench) -> None:
    bench.run(8)
    bench.request()
    bench.run(2)
    bench.request()
    bench.run(10)
    assert [ack.state for ack in bench.acks] == [CommandState.REJECTED, CommandState.APPLIED]


def test_a_run_that_ends_writes_down_what_was_followed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_steps=12)
    bench.run(8)
    bench.request('{"steps": 50}')
    bench.run(10)
    assert bench.snapshot_rows[-1].tracked_steps == 1
    assert [ack.state for ack in bench.acks] == [CommandState.APPLIED]
    assert torch._C._len_torch_dispatch_stack() == 0
    bench.workload.close()


def test_settings_that_take_effect_end_it_early(bench: Bench) -> None:
    bench.run(8)
    bench.request('{"steps": 50}')
    bench.run(6)
    bench.inbox.put(a_command(payload='{"learning_rate": 0.5}', command_id="c2"))
    bench.run(3)
    assert bench.snapshot_rows[-1].tracked_steps == 3
    assert {ack.command_id: ack.state for ack in bench.acks} == {
        "c1": CommandState.APPLIED,
        "c2": CommandState.APPLIED,
    }


def test_a_step_that_runs_out_of_memory_ends_it(bench: Bench) -> None:
    bench.run(8)
    bench.request('{"steps": 50}')
    bench.run(5)
    assert bench.controller.proceed(bench.step + 1)  # This step fails, and is taken again.
    bench.run(3)
    assert bench.snapshot_rows[-1].tracked_steps == 2
    assert not bench.snapshots.is_busy


def test_a_snapshot_that_breaks_is_dropped_and_training_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(8)
    functions = {name: bench.workload.__dict__[name] for name in ("forward", "update")}
    monkeypatch.setattr("harness.watch.capture.snapshots.SnapshotWriter.sum_up", lambda *_: 1 / 0)
    bench.request()
    bench.run(12)
    (ack,) = bench.acks
    assert (ack.state, "output for the reason" in ack.message) == (CommandState.REJECTED, True)
    assert {name: bench.workload.__dict__[name] for name in functions} == functions
    assert bench.step == 20


def test_without_a_request_nothing_stands_in_for_the_workloads_functions(bench: Bench) -> None:
    before = dict(bench.workload.__dict__)
    bench.run(10)
    names = ("next_batch", "to_device", "forward", "backward", "update", "tidy")
    assert all(bench.workload.__dict__[name] is before[name] for name in names)
    bench.request()
    bench.run(10)
    assert all(bench.workload.__dict__[name] is before[name] for name in names)


def test_with_the_history_on_holders_are_named_at_any_moment(tmp_path: Path) -> None:
    bench = Bench(tmp_path, memory_history=True)
    retained: list[torch.Tensor] = []
    tidy = bench.workload.tidy

    def leaky(step: int) -> None:
        retained.append(torch.ones(1_000_000))
        tidy(step)

    bench.workload.tidy = leaky
    bench.run(9)
    # What earlier tests left in this process is held too, and older.
    ours = [
        row
        for row in bench.snapshots.live_allocations()
        if row.site.startswith("tests/unit/test_snapshots.py:")
    ]
    assert [row.held_bytes for row in ours] == [9 * 4_000_000]
    bench.inbox.put(a_command(payload='{"memory_history": false}'))
    bench.run(2)
    assert bench.snapshots.live_allocations() == []
    bench.workload.close()


def test_a_leak_is_hunted_once_and_nobody_is_answered(bench: Bench) -> None:
    hunt = LeakHunt(bench.inbox, lambda: bench.workload.settings.hunt_leaks)
    bench.run(8)
    hunt.on_leak(a_leak(), None)
    hunt.on_leak(a_leak(), None)
    assert [command.source for command in bench.inbox.commands] == [SOURCE]
    bench.run(20)
    assert (bench.snapshot_rows[-1].reason, bench.snapshot_rows[-1].tracked_steps) == ("leak", 12)
    assert bench.snapshot_rows[-1].message.startswith(
        "No allocation site of tensors retained 1.00 KiB or more from 10 steps."
    )
    assert bench.acks == []


def test_a_hunt_that_is_not_wanted_is_not_begun() -> None:
    inbox = Inbox()
    LeakHunt(inbox, lambda: False).on_leak(a_leak(), None)
    assert not inbox.commands


def test_a_hunt_that_is_refused_says_why(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "captures")
    bench.workload.__dict__["settings"] = bench.workload.settings.model_copy(update={"compile": True})
    LeakHunt(bench.inbox, lambda: True).on_leak(a_leak(), None)
    bench.run(8)
    (event,) = (one for one in bench.journal.of(EventRow) if one.label == "leak hunt refused")
    assert event.severity == Severity.INFO
    assert "train without torch.compile" in event.message
    assert bench.snapshots.hunt_result is not None
    assert bench.snapshots.hunt_result.refusal is not None
    bench.close()


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_hunt_while_growing_inputs_may_explain_the_growth_warns_of_nothing(
    tmp_path: Path, is_refused: bool
) -> None:
    bench = Bench(tmp_path / "captures")
    bench.workload.__dict__["settings"] = bench.workload.settings.model_copy(update={"compile": is_refused})
    LeakHunt(bench.inbox, lambda: True).on_leak(a_leak()._replace(verdict=LeakVerdict.WATCH), None)
    bench.run(20)
    assert bench.snapshots.hunt_result is not None
    events = [one for one in bench.journal.of(EventRow) if one.kind != EventKind.STATE]
    assert [one.severity for one in events] == ([] if is_refused else [Severity.INFO])
    bench.close()


def test_a_hunt_waits_for_the_snapshot_in_progress(bench: Bench) -> None:
    bench.run(8)
    bench.request()
    bench.run(2)
    LeakHunt(bench.inbox, lambda: True).on_leak(a_leak(), None)
    bench.run(30)
    assert [row.reason for row in bench.snapshot_rows[1:]] == [SnapshotReason.REQUESTED, SnapshotReason.LEAK]

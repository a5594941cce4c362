"""Test the report on memory that ran out on another GPU than the one that the run records the memory of."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.analysis.oom.budget import budget
from harness.analysis.oom.error import gpu_index
from harness.analysis.oom.report import OomPhase, OomReport, OomVerdict
from harness.analysis.oom.text import render
from harness.device.testing.device import FAKE_FACTS, FakeDevice
from harness.records.run import SettingsRow
from harness.settings.spec import SPECS
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.tracking.owners import is_same
from harness.train.workload import Workload
from harness.watch.memory import MemoryWatch
from harness.watch.oom.reporter import OomReporter, Subject
from tests.leak_factories import a_leak
from tests.snapshot_factories import a_row
from tests.store_factories import a_run, a_step
from tests.train_factories import FakeJournal, a_context, a_workload

pytestmark = pytest.mark.slow

GIB = 1 << 30
NAME = "NVIDIA GeForce RTX 4090"
# As `CUDACachingAllocator.cpp` of torch 2.13 words it, for a card of 24 GB.
TEXT = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 23.50 GiB of which "
    "1.00 GiB is free. Including non-PyTorch memory, this process has 22.50 GiB memory in use. Of the "
    "allocated memory 20.00 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated."
)


@pytest.fixture(scope="module")
def workload() -> Iterator[Workload]:
    result = a_workload()
    yield result
    result.close()


def a_card(index: int, allocated_bytes: int, *others: FakeDevice) -> FakeDevice:
    """A card with 2 GiB of free reserved memory."""
    facts = FAKE_FACTS._replace(ordinal=index, name=NAME, memory_bytes=round(23.5 * GIB))
    card = FakeDevice(facts, siblings={one.facts.ordinal or 0: one for one in others})
    card.allocator.allocate(allocated_bytes)
    card.allocator.allocate(2 * GIB)
    card.allocator.free(2 * GIB)
    return card


def report_on(folder: Path, workload: Workload, device: FakeDevice, index: int) -> OomReport:
    """The report of step 300, after steps that leak on the run's GPU, with an allocation site."""
    run_folder, settings = RunFolder(folder), workload.settings
    steps = [a_step(step)._replace(settings_version=1) for step in range(1, 300)]
    with LogAppender(run_folder.log, a_run()) as appender:
        appender.append(steps, [SettingsRow(1, 1, 0, json.dumps(workload.recorded(settings)), "{}", None)])
        appender.append([], [a_leak()])
    context = a_context(device, FakeJournal(), lambda: 77)
    memory = MemoryWatch(context.device)
    reporter = OomReporter(context, memory, run_folder, settings, frozenset(SPECS))
    memory.step_ended(0, 1)
    reading = device.read_memory()
    try:
        raise torch.OutOfMemoryError(TEXT.format(index))
    except torch.OutOfMemoryError as error:
        subject = Subject(workload, lambda: [a_row(held_bytes=GIB)._replace(stack="net.py:40 forward")])
        return reporter.explain(reporter.capture(error, 300, OomPhase.FORWARD, reading, subject))


def test_the_memory_of_the_gpu_that_the_error_names_is_read(tmp_path: Path, workload: Workload) -> None:
    other = a_card(1, 20 * GIB)
    report = report_on(tmp_path, workload, a_card(0, GIB, other), index=1)
    memory = report.facts.memory
    assert (memory.allocated_bytes, memory.device_free_bytes) == (20 * GIB, GIB)
    assert memory.reserved_bytes == other.allocator.reserved_bytes
    assert report.facts.device_name == f"{NAME} (cuda:1)"
    assert sum(part.size_bytes for part in budget(report.facts)) == memory.limit_bytes == round(23.5 * GIB)
    assert render(report).startswith(f"Out of memory in step 300 on {NAME} (cuda:1): ")


def test_nothing_of_the_runs_own_gpu_explains_it(tmp_path: Path, workload: Workload) -> None:
    report = report_on(tmp_path, workload, a_card(0, GIB, a_card(1, 20 * GIB)), index=1)
    facts = report.facts
    assert report.verdict is not OomVerdict.LEAK
    assert (facts.leak, facts.static_bytes, facts.peaks, facts.sites) == (None, None, (), ())
    assert {(s.allocated_bytes, s.peak_bytes, s.reserved_bytes) for s in facts.steps} == {(None, None, None)}
    assert facts.request.note is not None
    assert facts.request.note.startswith(
        "Memory ran out on cuda:1, and the run records the memory of cuda:0:"
    )


def test_where_the_other_gpu_cannot_be_read_the_text_of_the_error_remains(
    tmp_path: Path, workload: Workload
) -> None:
    report = report_on(tmp_path, workload, a_card(0, GIB), index=1)
    memory = report.facts.memory
    assert (memory.allocated_bytes, memory.reserved_bytes, memory.process_bytes) == (
        None,
        None,
        round(22.5 * GIB),
    )
    assert report.facts.device_name == "cuda:1"
    parts = {part.name: part.size_bytes for part in budget(report.facts)}
    assert parts == {"this process": round(22.5 * GIB), "free": GIB}


def test_an_error_on_the_runs_own_gpu_keeps_its_history(tmp_path: Path, workload: Workload) -> None:
    report = report_on(tmp_path, workload, a_card(1, 20 * GIB, a_card(0, GIB)), index=1)
    facts = report.facts
    assert (facts.device_name, facts.memory.allocated_bytes, facts.request.note) == (NAME, 20 * GIB, None)
    assert facts.static_bytes == 20 * GIB
    assert facts.leak is not None
    assert facts.peaks
    assert facts.sites


def test_a_cap_of_the_run_is_none_of_another_gpu(tmp_path: Path) -> None:
    workload = a_workload(memory_cap_gib=4)
    report = report_on(tmp_path, workload, a_card(0, GIB, a_card(1, 20 * GIB)), index=1)
    assert report.facts.memory.cap_bytes is None
    workload.close()


@pytest.mark.parametrize(
    ("text", "index"),
    [
        (TEXT.format(3), 3),
        # The form of torch 1.
        ("CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 31.75 GiB total capacity; 0 bytes", 1),
        ("XPU out of memory. Tried to allocate 34.00 MiB. GPU 12 has a total capacity of 11.93 GiB", 12),
        ("MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB", None),
        ("Allocation on device 5 would exceed allowed memory. (out of memory)", 5),
        ("CUDA error: out of memory", None),
    ],
)
def test_the_number_of_the_gpu_is_read_from_the_text(text: str, index: int | None) -> None:
    assert gpu_index(text) == index


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("cuda:0", "cuda:0", True), ("cuda:0", "cuda:1", False), ("cuda:1", "cpu", False), ("cpu", "cpu", True)],
)
def test_tensors_on_another_gpu_are_not_on_this_one(one: str, other: str, expected: bool) -> None:
    assert is_same(torch.device(one), torch.device(other)) is expected

"""Memory that really runs out on a GPU, under the allocator's memory fraction, and what each policy makes of
it in the same process."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch

from harness.analysis.oom.error import read_error
from harness.analysis.oom.report import OomReport, OomVerdict, report_from_json
from harness.device.find import open_device
from harness.device.host.details import sees_machine_pids
from harness.records.run import CommandKind, CommandState, EventKind, EventRow, RunState
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.watch.memory import MemoryWatch
from tests.gpu.test_run_on_cuda import request, settled, start, until

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

MIB = 1 << 20
TOO_LARGE = 16_384
CAPPED = {"model": "cnn", "preset": "workstation", "batch_size": 8, "memory_cap_gib": 2}


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor(Home.locate(None, os.environ))
    yield supervisor
    for summary in supervisor.runs():
        if not summary.status.state.is_over:
            supervisor.stop(supervisor.home.find(summary.run_id))


def events(folder: RunFolder, kind: EventKind) -> list[EventRow]:
    with LogReader(folder.log) as log:
        return [event for _, event in log.events() if event.kind == kind]


def reports(folder: RunFolder) -> list[OomReport]:
    with LogReader(folder.log) as log:
        return [report_from_json(row.report) for row in log.memory.oom_reports()]


def run_out(supervisor: Supervisor, **values: object) -> RunFolder:
    folder = start(supervisor, **CAPPED | values)
    answer = request(supervisor, folder, CommandKind.SET, batch_size=TOO_LARGE)
    assert answer.state in (CommandState.APPLIED, CommandState.ROLLED_BACK), answer.message
    return folder


def assert_level_is_back(event: EventRow) -> None:
    detail = json.loads(event.detail)
    assert detail["is_back"] is True, detail


def test_a_change_that_was_too_much_is_rolled_back(
    supervisor: Supervisor, record_property: Callable[[str, object], None]
) -> None:
    folder = run_out(supervisor)
    until(lambda: bool(events(folder, EventKind.OOM_RECOVERED)), "the recovery")
    (failure,) = events(folder, EventKind.OOM)
    until(lambda: len(settled(folder, failure.step)) >= 20, "20 settled steps after it")
    supervisor.stop(folder)
    assert_level_is_back(failure)
    (report,) = reports(folder)
    assert report.verdict in (OomVerdict.CAP, OomVerdict.FRAGMENTATION)
    assert report.facts.request.error_bytes is not None
    assert report.facts.memory.reserved_bytes is not None
    assert report.facts.memory.reserved_bytes <= 2 << 30
    assert report.facts.memory.device_total_bytes is not None
    with LogReader(folder.log) as log:
        assert json.loads(log.settings_history()[-1].changed) == {"batch_size": 8}
    record_property("the report's sentence", report.sentence)
    record_property("the error's text", report.facts.error[:400])


def test_the_batch_is_halved_until_it_fits(supervisor: Supervisor) -> None:
    folder = run_out(supervisor, oom_policy="halve", oom_retries=12)
    until(lambda: bool(events(folder, EventKind.OOM_RECOVERED)), "the recovery")
    supervisor.stop(folder)
    for failure in events(folder, EventKind.OOM):
        assert_level_is_back(failure)
    with LogReader(folder.log) as log:
        settings = json.loads(log.settings_history()[-1].settings)
    assert settings["batch_size"] * settings["grad_accumulation"] == TOO_LARGE


@pytest.mark.parametrize(("policy", "failures"), [("stop", 1), ("skip", 4)])
def test_it_ends_when_nothing_is_left_to_do(supervisor: Supervisor, policy: str, failures: int) -> None:
    folder = run_out(supervisor, oom_policy=policy)
    until(lambda: supervisor.status(folder).state.is_over, "the end")
    assert supervisor.status(folder).state is RunState.OUT_OF_MEMORY
    assert len(events(folder, EventKind.OOM)) == len(reports(folder)) == failures


def test_the_error_under_the_memory_fraction_is_read(record_property: Callable[[str, object], None]) -> None:
    device = open_device("cuda")
    device.begin_memory()
    device.cap_memory(256 * MIB)
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(512 * MIB, dtype=torch.uint8, device=device.torch_device)
    finally:
        device.cap_memory(None)
    record_property("text", " ".join(str(caught.value).split()))
    record_property("process numbers are the machine's", sees_machine_pids())
    result = read_error(str(caught.value))
    assert result.requested_bytes == 512 * MIB
    assert result.total_bytes is not None
    assert result.free_bytes is not None
    reserved_bytes = torch.cuda.memory_reserved(device.torch_device)
    assert result.process_bytes is None or result.process_bytes >= 0.98 * reserved_bytes
    assert result.process_bytes is not None or result.others_bytes is None


def test_the_allocators_segments_add_up_to_what_it_says_it_holds() -> None:
    device = open_device("cuda")
    device.begin_memory()
    tensors = [torch.zeros(3 * MIB, dtype=torch.uint8, device=device.torch_device) for _ in range(20)]
    del tensors[::2]
    memory, cut = device.read_memory(), device.read_allocator()
    assert cut.reserved_bytes == memory.reserved_bytes
    assert cut.live_blocks is not None
    assert cut.live_blocks >= 10
    assert memory.allocated_bytes is not None
    assert memory.reserved_bytes is not None
    free = (cut.free_bytes or 0) + (cut.split_free_bytes or 0) + (cut.private_free_bytes or 0)
    assert free + (cut.waiting_bytes or 0) == memory.reserved_bytes - memory.allocated_bytes


def test_an_error_that_was_swallowed_shows_in_the_allocators_counters() -> None:
    device = open_device("cuda")
    device.begin_memory()
    watch = MemoryWatch(device)
    watch.restart(steps=5)
    assert not watch.has_failures(device.read_memory())
    device.cap_memory(256 * MIB)
    try:
        with suppress(torch.OutOfMemoryError):
            torch.empty(512 * MIB, dtype=torch.uint8, device=device.torch_device)
    finally:
        device.cap_memory(None)
    assert watch.has_failures(device.read_memory())

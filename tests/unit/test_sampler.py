"""The sampler's jobs: each at its own pace, none able to break training."""

import json
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.device.host.details import HostDetails, WorkerLoad
from harness.device.host.probe import HostSample
from harness.device.protocol import DeviceDetails, DeviceProcess, DeviceSample
from harness.records.telemetry import DeviceDetailRow, DeviceProcessRow, WorkerSampleRow
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.watch.context import Progress
from harness.watch.guard import MOST_FAILURES, FailureGuard
from harness.watch.inbox import Inbox
from harness.watch.jobs.commands import CommandPoll
from harness.watch.jobs.peak import IDLE_PERIOD_S, LONG_NS, READ_PERIOD_S, PeakWatch
from harness.watch.jobs.sampler import Job, Sampler, every
from harness.watch.jobs.telemetry import DETAILS_EVERY, WORKERS_EVERY, TelemetryRecorder
from harness.watch.memory import MemoryWatch
from tests.train_factories import Clock, FakeJournal, a_command, a_context, a_device, raising

SOON_S = 10.0


def test_jobs_are_run_again_and_again_until_it_is_closed() -> None:
    often, rarely, finished = threading.Semaphore(0), threading.Semaphore(0), list[str]()
    jobs = [
        Job("often", every(0.0), lambda: often.release()),
        Job("rarely", every(3600.0), lambda: rarely.release(), lambda: finished.append("rarely")),
    ]
    with Sampler(jobs, FailureGuard(lambda *_: None), time.monotonic):
        for _ in range(3):
            assert often.acquire(timeout=SOON_S)
        assert rarely.acquire(timeout=SOON_S)
        assert not finished
    assert finished == ["rarely"]
    assert not rarely.acquire(blocking=False)
    assert not [t for t in threading.enumerate() if t.name == "stepscope-sampler"]


def test_a_job_that_breaks_is_dropped_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    reports: list[str] = []
    runs = threading.Semaphore(0)
    jobs = [
        Job("broken", every(0.0), raising(ValueError("no such sensor"))),
        Job("fine", every(0.0), lambda: runs.release()),
    ]
    with Sampler(jobs, FailureGuard(lambda name, error: reports.append(f"{name}: {error}")), time.monotonic):
        for _ in range(MOST_FAILURES + 2):
            assert runs.acquire(timeout=SOON_S)
    assert reports == ["broken: ValueError: no such sensor"]


def test_jobs_whose_pauses_divide_each_other_are_done_at_one_waking() -> None:
    done: list[str] = []
    jobs = [
        Job("often", every(0.01), lambda: done.append("often")),
        Job("rarely", every(0.03), lambda: done.append("rarely")),
    ]
    with Sampler(jobs, FailureGuard(lambda *_: None), time.monotonic):
        deadline_s = time.monotonic() + SOON_S
        while done.count("rarely") < 5 and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert done.count("rarely") >= 5
    assert all(before == "often" for before, job in pairwise(done) if job == "rarely")
    assert done.count("often") > done.count("rarely")


def test_closing_before_the_start_and_twice_is_harmless() -> None:
    sampler = Sampler([Job("job", every(1.0), lambda: None)], FailureGuard(lambda *_: None), time.monotonic)
    sampler.close()
    with sampler:
        pass
    sampler.close()


class PeakReads:
    def __init__(self) -> None:
        self.count = 0
        self.work_s = 0.0

    def sample_peak(self) -> None:
        self.count += 1
        ends_s = time.thread_time() + self.work_s
        while time.thread_time() < ends_s:
            pass


def a_peak_watch(
    progress: Progress, clock: Clock, memory: MemoryWatch | None = None
) -> tuple[PeakWatch, PeakReads]:
    device: Any = PeakReads()
    context = a_context(device, clock_ns=clock, progress=progress)
    return PeakWatch(context, memory or MemoryWatch(a_device())), device


def test_the_peak_is_not_looked_for_within_short_steps() -> None:
    clock = Clock()
    watch, peak_reads = a_peak_watch(Progress(0, 5, (-2_000_000, 0)), clock)
    clock.now_ns = 1_000_000
    watch.sample()
    assert (peak_reads.count, watch.pause_s()) == (0, IDLE_PERIOD_S)


def test_the_peak_is_looked_for_often_when_steps_are_long() -> None:
    watch, peak_reads = a_peak_watch(Progress(0, 5, (-LONG_NS, 0)), Clock())
    watch.sample()
    assert (peak_reads.count, watch.pause_s()) == (1, READ_PERIOD_S)


def test_the_peak_is_looked_for_when_the_step_under_way_turns_out_long() -> None:
    clock = Clock()
    watch, peak_reads = a_peak_watch(Progress(0, 5, (-2_000_000, 0)), clock)
    clock.now_ns = LONG_NS
    watch.sample()
    assert (peak_reads.count, watch.pause_s()) == (1, READ_PERIOD_S)


def test_the_peak_is_not_looked_for_within_a_step_that_is_not_read() -> None:
    memory = MemoryWatch(a_device())
    memory.step_ended(0, step_ns=1)
    assert not memory.is_sampled
    watch, peak_reads = a_peak_watch(Progress(0, 5, (-LONG_NS, 0)), Clock(), memory)
    watch.sample()
    assert peak_reads.count == 0


def test_the_peak_is_looked_for_less_often_where_that_takes_long() -> None:
    watch, peak_reads = a_peak_watch(Progress(0, 5, (-LONG_NS, 0)), Clock())
    peak_reads.work_s = 0.01
    watch.sample()
    assert 1.0 <= watch.pause_s() <= 10.0


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_no_control_file_means_no_commands(folder: RunFolder) -> None:
    inbox = Inbox()
    CommandPoll(folder, inbox).poll()
    assert not inbox.commands
    assert not folder.control.exists()


def test_each_command_is_passed_on_once_and_in_order(folder: RunFolder) -> None:
    inbox = Inbox()
    poll = CommandPoll(folder, inbox)
    with ControlLog(folder) as control:
        for number in range(5):
            control.send(a_command(command_id=f"c{number}"))
            if number % 2:
                poll.poll()
        poll.poll()
        poll.poll()
    poll.close()
    assert [command.command_id for command in inbox.commands] == [f"c{number}" for number in range(5)]


def test_an_untouched_file_is_not_opened_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    inbox = Inbox()
    with ControlLog(folder) as control:
        control.send(a_command())
        os.utime(folder.control, ns=(0, 0))
        poll = CommandPoll(folder, inbox)
        poll.poll()
        with monkeypatch.context() as patch:
            patch.setattr(ControlLog, "commands", raising(AssertionError("was opened")))
            poll.poll()
        control.send(a_command(command_id="c2"))
    poll.poll()
    poll.close()
    assert [command.command_id for command in inbox.commands] == ["c1", "c2"]


def test_two_commands_within_one_tick_of_the_files_clock_both_arrive(folder: RunFolder) -> None:
    inbox = Inbox()
    with ControlLog(folder) as control:
        control.send(a_command())
        poll = CommandPoll(folder, inbox, lambda: folder.control.stat().st_mtime_ns)
        poll.poll()
        control.send(a_command(command_id="c2"))
    poll.poll()
    poll.close()
    assert len(inbox.commands) == 2


def test_a_command_in_a_file_that_was_locked_for_long_arrives_when_it_is_not(folder: RunFolder) -> None:
    inbox = Inbox()
    with ControlLog(folder) as control:
        control.send(a_command())
    os.utime(folder.control, ns=(0, 0))
    poll = CommandPoll(folder, inbox)
    locker = sqlite3.connect(folder.control, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    poll.poll()
    assert not inbox.commands
    locker.close()
    poll.poll()
    poll.close()
    assert [command.command_id for command in inbox.commands] == ["c1"]


class Sensor:
    def __init__(self, device: str) -> None:
        self._device = device
        self.further: Sequence[DeviceDetails] = ()

    def sample(self) -> Sequence[DeviceSample]:
        return [DeviceSample(self._device, 55.0, *(None,) * 9)]

    def details(self) -> Sequence[DeviceDetails]:
        return self.further

    def close(self) -> None:
        pass


NO_WORKERS = HostDetails((), 1.0, 2.0, 3.0, 4.0)
SILENT = DeviceDetails("GPU-1", *(None,) * (len(DeviceDetails._fields) - 1))


class Bench:
    """A host, a sink and clocks that only the test moves."""

    def __init__(self, *sensors: Sensor) -> None:
        self.journal = FakeJournal()
        self.details = NO_WORKERS
        self.now_ns = 99
        self.cpu_ns = 0
        host: Any = SimpleNamespace(
            sample=lambda: HostSample(1.0, 2.0, 3, None, None, 4, 5), details=lambda: self.details
        )
        context = a_context(None, self.journal, lambda: self.now_ns, Progress(last_step=7))
        self.telemetry = TelemetryRecorder(context, sensors, host, self._cpu_clock_ns)

    def _cpu_clock_ns(self) -> int:
        self.cpu_ns += 2_000_000
        return self.cpu_ns

    def sample(self) -> list[Any]:
        self.journal.rows.clear()
        self.telemetry.sample()
        return list(self.journal.rows)


def test_a_sample_of_everything_stands_beside_the_step_reached() -> None:
    bench = Bench(Sensor("cpu"), Sensor("GPU-1"))
    for seq in (0, 1):
        rows = bench.sample()
        assert [(type(row).__name__, row.seq, row.t_ns, row.step) for row in rows] == [
            ("DeviceSampleRow", seq, 99, 7),
            ("DeviceSampleRow", seq, 99, 7),
            ("HostSampleRow", seq, 99, 7),
            ("HostDetailRow", seq, 99, 7),
        ]
    assert json.loads(json.dumps(rows[0]))[0] == "cpu"


def test_a_sample_states_its_own_cost() -> None:
    bench = Bench()
    assert bench.sample()[-1].sampling_pct is None
    bench.now_ns += 1_000_000_000
    cost = bench.sample()[-1]
    assert cost.sampling_cpu_ns == 2_000_000
    assert cost.sampling_pct == pytest.approx(0.2)


def test_processes_are_written_only_when_they_change() -> None:
    sensor = Sensor("GPU-1")
    bench = Bench(sensor)

    def written(*processes: DeviceProcess) -> list[tuple[int, int | None]]:
        sensor.further = [SILENT._replace(processes=processes)]
        rows = [row for _ in range(DETAILS_EVERY) for row in bench.sample()]
        (detail,) = [row for row in rows if isinstance(row, DeviceDetailRow)]
        assert detail.processes == len(processes)
        return [(row.pid, row.memory_bytes) for row in rows if isinstance(row, DeviceProcessRow)]

    one, two = DeviceProcess(7, 100), DeviceProcess(8, 200)
    assert written(one) == [(7, 100)]
    assert written(one) == []
    assert written(one, two) == [(7, 100), (8, 200)]
    assert written(one._replace(memory_bytes=101), two) == [(7, 101), (8, 200)]
    assert written() == []


def test_a_process_whose_memory_is_not_told_leaves_their_sum_missing() -> None:
    sensor = Sensor("GPU-1")
    sensor.further = [SILENT._replace(processes=(DeviceProcess(7, 100), DeviceProcess(8, None)))]
    (detail,) = [row for row in Bench(sensor).sample() if isinstance(row, DeviceDetailRow)]
    assert (detail.processes, detail.processes_bytes) == (2, None)


def test_workers_are_recorded_together_always_and_one_by_one_now_and_then() -> None:
    bench = Bench()
    bench.details = NO_WORKERS._replace(workers=(WorkerLoad(1, 60.0, 10), WorkerLoad(2, 70.0, 20)))
    singly = []
    for _ in range(WORKERS_EVERY + 1):
        rows = bench.sample()
        assert (rows[-1].workers, rows[-1].workers_cpu_pct) == (2, 130.0)
        singly.append(len([row for row in rows if isinstance(row, WorkerSampleRow)]))
    assert singly == [2] + [0] * (WORKERS_EVERY - 1) + [2]

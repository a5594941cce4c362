"""The sampler's jobs: each at its own pace, none able to break training."""

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.device.host import HostSample
from harness.device.protocol import DeviceSample
from harness.observers.commands import CommandPoll
from harness.observers.dispatch import MOST_FAILURES, Guard, Progress
from harness.observers.peak import IDLE_PERIOD_S, LONG_NS, LOOK_PERIOD_S, PeakWatch
from harness.observers.sampler import Job, Sampler, every
from harness.observers.telemetry import TelemetryRecorder
from harness.records import DeviceSampleRow, HostSampleRow
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.train.inbox import Inbox
from tests.train_factories import Clock, a_command, raising

SOON_S = 10.0


def test_jobs_are_run_again_and_again_until_it_is_closed() -> None:
    often, rarely = threading.Semaphore(0), threading.Semaphore(0)
    jobs = [
        Job("often", every(0.0), lambda: often.release()),
        Job("rarely", every(3600.0), lambda: rarely.release()),
    ]
    with Sampler(jobs, Guard(lambda *_: None), time.monotonic):
        for _ in range(3):
            assert often.acquire(timeout=SOON_S)
        assert rarely.acquire(timeout=SOON_S)
    assert not rarely.acquire(blocking=False)
    assert not [t for t in threading.enumerate() if t.name == "stepscope-sampler"]


def test_a_job_that_breaks_is_dropped_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    reports: list[str] = []
    runs = threading.Semaphore(0)
    jobs = [
        Job("broken", every(0.0), raising(ValueError("no such sensor"))),
        Job("fine", every(0.0), lambda: runs.release()),
    ]
    with Sampler(jobs, Guard(lambda name, error: reports.append(f"{name}: {error}")), time.monotonic):
        for _ in range(MOST_FAILURES + 2):
            assert runs.acquire(timeout=SOON_S)
    assert reports == ["broken: ValueError: no such sensor"]


def test_closing_before_the_start_and_twice_is_harmless() -> None:
    sampler = Sampler([Job("job", every(1.0), lambda: None)], Guard(lambda *_: None), time.monotonic)
    sampler.close()
    with sampler:
        pass
    sampler.close()


class Looks:
    def __init__(self) -> None:
        self.count = 0

    def sample_peak(self) -> None:
        self.count += 1


def a_peak_watch(progress: Progress, clock: Clock) -> tuple[PeakWatch, Looks]:
    device: Any = Looks()
    return PeakWatch(device, progress, clock), device


def test_the_peak_is_not_looked_for_within_short_steps() -> None:
    clock = Clock()
    watch, looks = a_peak_watch(Progress(0, 5, (-2_000_000, 0)), clock)
    clock.now_ns = 1_000_000
    watch.look()
    assert (looks.count, watch.pause_s()) == (0, IDLE_PERIOD_S)


def test_the_peak_is_looked_for_often_when_steps_are_long() -> None:
    watch, looks = a_peak_watch(Progress(0, 5, (-LONG_NS, 0)), Clock())
    watch.look()
    assert (looks.count, watch.pause_s()) == (1, LOOK_PERIOD_S)


def test_the_peak_is_looked_for_when_the_step_under_way_turns_out_long() -> None:
    clock = Clock()
    watch, looks = a_peak_watch(Progress(0, 5, (-2_000_000, 0)), clock)
    clock.now_ns = LONG_NS
    watch.look()
    assert (looks.count, watch.pause_s()) == (1, LOOK_PERIOD_S)


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


class Sensor:
    def __init__(self, device: str) -> None:
        self._device = device

    def sample(self) -> Sequence[DeviceSample]:
        return [DeviceSample(self._device, 55.0, *(None,) * 9)]

    def close(self) -> None:
        pass


def test_a_sample_of_everything_stands_beside_the_step_reached() -> None:
    rows: list[DeviceSampleRow | HostSampleRow] = []
    host: Any = SimpleNamespace(sample=lambda: HostSample(1.0, 2.0, 3, None, None, 4, 5))
    sink: Any = SimpleNamespace(put=rows.append)
    telemetry = TelemetryRecorder([Sensor("cpu"), Sensor("GPU-1")], host, sink, lambda: 99, lambda: 7)
    telemetry.sample()
    telemetry.sample()
    assert [(type(row).__name__, row.seq, row.t_ns, row.step) for row in rows[:3]] == [
        ("DeviceSampleRow", 0, 99, 7),
        ("DeviceSampleRow", 0, 99, 7),
        ("HostSampleRow", 0, 99, 7),
    ]
    assert [row.seq for row in rows[3:]] == [1, 1, 1]
    assert json.loads(json.dumps(rows[0]))[0] == "cpu"

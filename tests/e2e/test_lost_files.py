"""Real runs that lose their log, folder or disk: they go on, say so, and end when they should."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.analysis.state import RunStatus
from harness.records.memory import LeakVerdict
from harness.records.run import CommandKind, CommandState, EventKind, EventRow, RunState
from harness.run import EXIT_OK
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.store.vital_signs import VitalSigns, read_vital_signs
from harness.supervisor import Supervisor
from tests.e2e.test_run_process import Child, a_child
from tests.store_factories import step_numbers
from tests.supervision import until
from tests.train_factories import a_command

pytestmark = pytest.mark.slow


def _gaps(child: Child) -> list[EventRow]:
    return child.events(EventKind.GAP)


def _status(home: Home, folder: RunFolder) -> RunStatus:
    return Supervisor(home).status(folder)


def _signs(folder: RunFolder) -> VitalSigns:
    signs = read_vital_signs(folder.alive)
    assert signs is not None
    return signs


def test_a_run_survives_a_cut_log_a_deleted_log_and_a_renamed_folder(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with a_child(home) as child:
        before = child.folder
        child.until_step(100)
        os.truncate(before.log.with_name("log.sqlite3-wal"), 5_000)
        child.until(lambda log: any(event.kind == EventKind.GAP for _, event in log.events()))
        child.until_step(_signs(before).finished_step + 1)
        for name in ("log.sqlite3", "log.sqlite3-wal", "log.sqlite3-shm"):
            (before.path / name).unlink()
        before.alive.unlink()
        child.until(lambda log: sum(event.kind == EventKind.GAP for _, event in log.events()) == 2)
        until(lambda: _status(home, before), lambda status: status.state is RunState.RUNNING)
        child.folder = RunFolder(before.path.rename(before.path.with_name("renamed")))
        assert child.request(CommandKind.SET, '{"batch_size": 16}').state == CommandState.APPLIED
        with ControlLog(child.folder) as control:
            control.send(a_command(CommandKind.STOP, "{}", "stop"))
        assert child.end() == EXIT_OK, child.output
        assert not before.path.exists()
        missing = sum(json.loads(gap.detail)["missing_steps"] for gap in _gaps(child))
        signs = _signs(child.folder)
        with LogReader(child.folder.log) as log:
            log.check()
            numbers = step_numbers(log)
            assert log.run().state == RunState.STOPPED
            assert [row.version for row in log.settings_history()] == [1, 2]
        assert numbers[-1] == signs.finished_step
        assert len(numbers) + missing == signs.finished_step
        assert signs.unwritten_since_unix_ns is None
        status = _status(home, child.folder)
        lacks = f"{missing:,} steps up to step {signs.finished_step:,} are missing."
        expected = lacks if missing else "Everything is in the log."
        assert status.message == f"Stopped by request from the test. {expected}"
        names = {entry.name for entry in child.folder.path.iterdir()}
        assert names - {"log.damaged-1.sqlite3", "log.damaged-1.sqlite3-wal"} == {
            "request.json",
            "process.json",
            "control.sqlite3",
            "log.sqlite3",
            "harness.log",
            "alive",
        }


def test_a_run_whose_folder_is_deleted_stops_and_makes_nothing_again(tmp_path: Path) -> None:
    with a_child(Home(tmp_path)) as child:
        child.until_step(20)
        with child.folder.output.open() as output:
            shutil.rmtree(child.folder.path)
            assert child.end() == 1
            text = output.read()
    assert text.startswith("stepscope: The folder of this run, ")
    assert "was deleted while it trained" in text
    assert not child.folder.path.exists()


def test_how_many_steps_a_kill_cost_is_counted(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with a_child(home) as child:
        child.until_step(100)
        child.process.kill()
        child.end()
        signs = _signs(child.folder)
        with LogReader(child.folder.log) as log:
            last = step_numbers(log)[-1]
        lost = signs.finished_step - last
        assert lost >= 0
        were = "step after step {0:,} was" if lost == 1 else "steps after step {0:,} were"
        words = f"{lost:,} {were.format(last)} not in the log yet." if lost else "Everything is in the log."
        assert _status(home, child.folder).message.endswith(words)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "none", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system may be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def _fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4_096))
        except OSError:
            return filler


@pytest.mark.long
def test_a_run_on_a_full_disk_says_so_and_does_not_call_its_own_backlog_a_leak(small_disk: Path) -> None:
    home = Home(small_disk)
    with a_child(home, slow_loader_ms=4.0) as child:  # Most of its time is waited: a core is left to others.
        child.until_step(100)
        filler = _fill(small_disk)
        status = until(lambda: _status(home, child.folder), lambda status: status.is_warning)
        assert status.state is RunState.RUNNING
        assert "but its log is not written since" in status.message
        assert status.message.endswith("(database or disk is full): is the disk full?")
        step = _signs(child.folder).finished_step
        until(lambda: _signs(child.folder).finished_step, lambda now: now > step + 500)
        filler.unlink()
        child.until(lambda log: any(event.kind == EventKind.GAP for _, event in log.events()))
        until(lambda: _status(home, child.folder), lambda status: not status.is_warning)
        (gap,) = _gaps(child)
        assert json.loads(gap.detail)["outage_s"] >= 5.0
        assert json.loads(gap.detail)["waiting_steps"] > 500
        _fill(small_disk)
        since = until(lambda: _signs(child.folder), lambda signs: bool(signs.reason and signs[1]))
        child.process.send_signal(signal.SIGTERM)
        assert child.end() == EXIT_OK, child.output
        (small_disk / "filler").unlink()
        assert child.events(EventKind.LEAK) == []
        with LogReader(child.folder.log) as log:
            log.check()
            lost = _signs(child.folder).finished_step - step_numbers(log)[-1]
            assert LeakVerdict.LEAK not in {row.verdict for row in log.memory.current_leaks()}
        assert since.unwritten_since_unix_ns is not None
        state, message, *_ = _status(home, child.folder)
        assert state is RunState.STOPPED
        assert message.startswith("Stopped by SIGTERM. Its log is incomplete: ")
        assert "rows are lost; was the disk full?" in message
        assert f"{lost:,} steps after step" in message
        assert message.endswith("The log could not be written: database or disk is full.")

"""A run is stopped even where nothing can be written: a full disk, a locked or damaged control file."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from harness.errors import HomeError, RunStateError
from harness.records.run import CommandKind, RunState
from harness.store.folder import RunFolder
from harness.supervisor import EscalationStage, Supervisor
from harness.supervisor.processes import find_process
from tests.supervision import PATIENT, SupervisorBench, until

pytestmark = pytest.mark.slow


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four MiB."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def _fill(disk: Path) -> None:
    """Take all that is left of the disk, to the last byte."""
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (65_536, 1):
            with suppress(OSError):
                while True:
                    file.write(b"\0" * size)
    assert os.statvfs(disk).f_bavail == 0


_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def _locked(control: Path) -> Iterator[None]:
    """Another process keeps the control file locked."""
    command = [sys.executable, "-c", _LOCK, str(control)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            process.communicate("")


def _recorded_by(parent: Supervisor, folder: RunFolder, other: Supervisor) -> RunState:
    """The run's state for a supervisor that is not its parent, once the parent had its turn."""
    parent.reap()
    return other.status(folder).state


def _is_gone(folder: RunFolder) -> bool:
    return find_process(folder) is None


@pytest.mark.long
def test_on_a_full_disk_a_pause_is_refused_and_a_stop_is_carried_out_by_signals(small_disk: Path) -> None:
    bench = SupervisorBench(small_disk / "home")
    try:
        by_page, by_shell = bench.start("obey", "page"), bench.start("obey", "shell")
        for folder in (by_page, by_shell):
            bench.wait_for(folder, RunState.RUNNING)
        _fill(small_disk)
        with pytest.raises(HomeError, match=r"cannot be written: .* free space on that disk, and try again"):
            bench.supervisor.send(by_page, CommandKind.PAUSE)

        undelivered = bench.supervisor.request_stop(by_page)
        assert undelivered is not None
        assert "free space on that disk" in undelivered
        assert bench.supervisor.request_stop(by_page) is None
        until(lambda: _is_gone(by_page), bool)
        assert bench.processes[2].wait() == 0
        status = bench.supervisor.status(by_page)
        assert status.state is RunState.KILLED
        assert "SIGTERM" in status.message
        assert "did not stop by itself" in status.message

        sentences: list[str] = []
        assert bench.supervisor.stop(by_shell, announce=sentences.append) is EscalationStage.ENDED
        (sentence,) = sentences
        assert sentence.startswith("stop: the stop command could not be sent (")
        assert sentence.endswith("sending SIGTERM to the process group")
        assert len(bench.processes) == 3  # Two runs and one helper.

        (small_disk / "filler").unlink()
        late = bench.another()
        until(lambda: _recorded_by(bench.supervisor, by_page, late), lambda state: state is RunState.KILLED)
    finally:
        bench.close()


@pytest.mark.parametrize("how", ["locked", "damaged", "foreign"])
def test_a_control_file_that_takes_no_command_does_not_protect_a_run(
    bench: SupervisorBench, how: str
) -> None:
    folder = bench.start("obey")
    bench.wait_for(folder, RunState.RUNNING)
    bench.supervisor.send(folder, CommandKind.RESUME)
    if how == "damaged":
        os.truncate(folder.control, 6_000)
    elif how == "foreign":
        folder.control.write_bytes(b"not a database at all" * 100)
    sentences: list[str] = []
    if how == "locked":
        with _locked(folder.control):
            assert bench.supervisor.stop(folder, announce=sentences.append) is EscalationStage.ENDED
    else:
        assert bench.supervisor.stop(folder, announce=sentences.append) is EscalationStage.ENDED
    assert "could not be sent" in sentences[0]
    assert bench.processes[0].wait() == -signal.SIGTERM
    with pytest.raises(RunStateError, match="there is no process to stop"):
        bench.supervisor.stop(folder)


def test_the_helper_of_a_stop_starts_where_the_output_cannot_be_written(bench: SupervisorBench) -> None:
    folder = bench.start("obey")
    bench.wait_for(folder, RunState.RUNNING)
    folder.output.unlink()
    folder.output.mkdir()
    assert bench.supervisor.request_stop(folder) is None
    bench.wait_for(folder, RunState.STOPPED)
    assert bench.processes[1].wait() == 0


def test_a_run_whose_files_were_all_deleted_is_stopped_by_its_command_line(bench: SupervisorBench) -> None:
    folder = bench.start("deaf")
    bench.wait_for(folder, RunState.RUNNING)
    folder.alive.unlink()
    result = find_process(folder)
    assert result is not None
    assert (result.pid, result.is_locked) == (bench.processes[0].pid, False)
    hurried = PATIENT._replace(terminated_s=0.0)
    assert bench.another(hurried._replace(request_s=0.0)).stop(folder) is EscalationStage.ENDED
    assert bench.processes[0].wait() == -signal.SIGKILL

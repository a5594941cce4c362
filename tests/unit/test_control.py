"""The control file and the liveness lock, with real processes."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from dashboard.data.runs import read_commands
from harness.errors import HomeError, LogDamagedError, LogForeignError, LogNewerError
from harness.records.run import CommandKind, CommandRow, ExitRow
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.liveness import Liveness, LockHolder, heartbeat_age_s, is_alive, lock_holder
from harness.supervisor.inspection import stop_requested_unix_ns
from harness.watch.inbox import Inbox
from harness.watch.jobs.commands import CommandPoll


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def _command(command_id: str = "c1") -> CommandRow:
    return CommandRow(command_id, 1, CommandKind.SET, '{"amp": "bf16"}', "test")


def test_nothing_was_asked_before_there_is_a_file(folder: RunFolder) -> None:
    with ControlLog(folder) as control:
        assert control.commands() == []
        assert control.last_exit() is None
    assert not folder.control.exists()


def test_commands_arrive_once_and_in_order(folder: RunFolder) -> None:
    with ControlLog(folder) as sender, ControlLog(folder) as receiver:
        assert receiver.commands() == []
        sender.send(_command("a"))
        sender.send(_command("b"))
        first = receiver.commands()
        assert [command.command_id for _, command in first] == ["a", "b"]
        assert first[0][1] == _command("a")
        last = first[-1][0]
        assert receiver.commands(last) == []
        sender.send(_command("c"))
        assert [command.command_id for _, command in receiver.commands(last)] == ["c"]


def test_a_poll_passes_on_more_commands_than_one_read_returns(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.store.control._MOST_COMMANDS", 2)
    with ControlLog(folder) as control:
        for number in range(5):
            control.send(_command(f"c{number}"))
    inbox = Inbox()
    poll = CommandPoll(folder, inbox, unix_ns=lambda: time.time_ns() + 10**10)  # Nothing was sent lately.
    poll.poll()
    poll.close()
    assert [command.command_id for command in inbox.commands] == ["c0", "c1", "c2", "c3", "c4"]


def test_a_stop_after_many_commands_is_noticed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.store.control._MOST_COMMANDS", 2)
    with ControlLog(folder) as control:
        for number in range(4):
            control.send(_command(f"c{number}"))
        control.send(_command("c4")._replace(kind=CommandKind.STOP, created_unix_ns=77))
        assert stop_requested_unix_ns(control) == 77
    assert [command.command_id for command in read_commands(folder)] == ["c3", "c4"]


def test_sending_a_command_twice_is_sending_it_once(folder: RunFolder) -> None:
    with ControlLog(folder) as control:
        for _ in range(10):
            control.send(_command())
        assert len(control.commands()) == 1


def test_the_last_exit_is_the_one_that_counts(folder: RunFolder) -> None:
    with ControlLog(folder) as control:
        control.record_exit(ExitRow(10, 1, -9))
        control.record_exit(ExitRow(11, 2, 0))
        assert control.last_exit() == ExitRow(11, 2, 0)


def test_many_senders_at_once_lose_no_command(folder: RunFolder) -> None:
    def send(name: str) -> None:
        with ControlLog(folder) as control:
            for index in range(10):
                control.send(_command(f"{name}-{index}"))

    threads = [threading.Thread(target=send, args=(str(n),)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with ControlLog(folder) as control:
        assert len(control.commands()) == 50
        assert [rowid for rowid, _ in control.commands()] == list(range(1, 51))


def test_a_foreign_file_is_not_touched(folder: RunFolder) -> None:
    folder.control.write_bytes(b"not a database at all, and long enough to be sure of that" * 20)
    before = folder.control.read_bytes()
    with ControlLog(folder) as control:
        with pytest.raises(LogForeignError, match=r"control\.sqlite3"):
            control.send(_command())
        with pytest.raises(LogForeignError, match=r"control\.sqlite3"):
            control.commands()
    assert folder.control.read_bytes() == before


def test_another_programs_database_is_not_touched(folder: RunFolder) -> None:
    connection = sqlite3.connect(folder.control)
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with ControlLog(folder) as control, pytest.raises(LogForeignError):
        control.send(_command())


def test_a_control_file_of_a_newer_version_asks_for_an_update(folder: RunFolder) -> None:
    with ControlLog(folder) as control:
        control.send(_command())
        connection = sqlite3.connect(folder.control, isolation_level=None)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(LogNewerError, match="update Stepscope"):
            control.send(_command("c2"))


def test_a_truncated_control_file_is_damaged(folder: RunFolder) -> None:
    with ControlLog(folder) as control:
        control.send(_command())
    os.truncate(folder.control, 6_000)
    with ControlLog(folder) as control, pytest.raises(LogDamagedError, match="is damaged"):
        control.send(_command("c2"))


def test_a_folder_that_is_gone_is_a_home_error(tmp_path: Path) -> None:
    with ControlLog(RunFolder(tmp_path / "gone")) as control:
        with pytest.raises(HomeError, match="cannot be written"):
            control.send(_command())
        assert control.commands() == []


_HOLDER = """
import sys, time
from pathlib import Path
from harness.store.liveness import Liveness
with Liveness.hold(Path(sys.argv[1])) as held:
    print("held", flush=True)
    sys.stdin.readline()
    held.beat()
    print("beat", flush=True)
    sys.stdin.readline()
"""


def _holder(path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_process_is_alive_while_it_holds_the_lock_however_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    assert not is_alive(path)
    for how in (signal.SIGKILL, signal.SIGTERM):
        with _holder(path) as process:
            assert is_alive(path)
            assert is_alive(path)
            process.send_signal(how)
            process.wait()
        assert not is_alive(path)


def test_asking_many_times_does_not_keep_a_process_from_taking_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    path.touch()
    done = threading.Event()

    def request() -> None:
        while not done.is_set():
            is_alive(path)

    thread = threading.Thread(target=request)
    thread.start()
    try:
        with _holder(path) as process:
            process.kill()
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
def test_the_lock_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    with _holder(path) as process:
        with pytest.raises(BlockingIOError, match="held by another process"):
            Liveness.hold(path)
        process.kill()
    with Liveness.hold(path) as held:
        held.close()


def test_the_heartbeat_ages_until_the_next_beat(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    assert heartbeat_age_s(path, time.time()) is None
    with _holder(path) as process:
        os.utime(path, (1_000, 1_000))
        assert heartbeat_age_s(path, 1_060.0) == 60.0
        assert heartbeat_age_s(path, 0.0) == 0.0
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "beat\n"
        age = heartbeat_age_s(path, time.time())
        assert age is not None
        assert age < 60
        process.kill()


def test_the_holder_of_a_lock_is_named_by_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    assert lock_holder(path) is None
    with _holder(path) as process:
        assert lock_holder(path) == LockHolder(process.pid)
        process.kill()
        process.wait()
        assert lock_holder(path) is None


def test_reading_does_not_wait_long_for_a_locked_file_and_says_that_it_read_nothing(
    folder: RunFolder,
) -> None:
    with ControlLog(folder) as control, ControlLog(folder, busy_s=0.0) as sender:
        control.send(_command())
        locker = sqlite3.connect(folder.control, isolation_level=None)
        locker.execute("BEGIN EXCLUSIVE")
        assert control.commands() == []
        assert control.is_unread
        with pytest.raises(HomeError, match="another process has locked it; try again when"):
            sender.send(_command("b"))
        locker.close()
        assert len(control.commands()) == 1
        assert not control.is_unread


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_sender_killed_in_the_middle_leaves_the_commands_before_it(folder: RunFolder) -> None:
    with ControlLog(folder) as control:
        for index in range(200):
            control.send(_command(str(index)))
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(folder.control, isolation_level=None)
        connection.execute("PRAGMA cache_size = 2")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE commands SET kind = 'stop', payload = hex(zeroblob(200))")
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.control.with_name("control.sqlite3-journal").stat().st_size > 0
    with ControlLog(folder) as control:
        assert {command.kind for _, command in control.commands()} == {"set"}


@pytest.mark.slow
def test_the_first_senders_of_all_may_come_at_once(tmp_path: Path) -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for attempt in range(20):
            folder = RunFolder(tmp_path / str(attempt))
            folder.path.mkdir()
            sends = [partial(ControlLog(folder).send, _command(name)) for name in "abcdef"]
            threads = [threading.Thread(target=send) for send in sends]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with ControlLog(folder) as control:
                assert len(control.commands()) == 6
    finally:
        sys.setswitchinterval(before)

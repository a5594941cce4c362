"""Test who a process is: found, written, read back, and told apart from a later owner of its pid."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from harness import identity


def test_this_process_finds_itself_running() -> None:
    me = identity.identify_self({})
    assert me.pid == os.getpid()
    assert identity.is_running(me)


def test_the_nonce_comes_from_the_supervisor_when_there_is_one() -> None:
    assert identity.identify_self({identity.NONCE_VARIABLE: "abc"}).nonce == "abc"
    assert identity.identify_self({}).nonce != identity.identify_self({}).nonce


def test_a_reused_pid_another_boot_and_nobody_are_not_the_process() -> None:
    me = identity.identify_self({})
    assert not identity.is_running(me._replace(start_ticks=me.start_ticks - 1))
    assert not identity.is_running(me._replace(boot_id="another boot"))
    assert not identity.is_running(me._replace(pid=2**22 + 1))
    assert not identity.is_running(None)


def test_a_process_of_another_container_is_told_apart_by_its_nonce() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {identity.NONCE_VARIABLE: "mine"},
    )
    try:
        assert child.stdout is not None
        child.stdout.readline()  # Until the program has begun, its environment is still its parent's.
        result = identity.identify(child.pid, "mine")
        assert identity.is_running(result)
        assert result is not None
        assert not identity.is_running(result._replace(nonce="theirs"))
    finally:
        child.communicate(b"\n")
    assert not identity.is_running(result)


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    result = identity.identify(child.pid, "n")
    assert child.stdout is not None
    child.stdout.read()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.start_ticks(child.pid) is None
    assert not identity.is_running(result)
    child.communicate()


def test_an_identity_survives_its_file(tmp_path: Path) -> None:
    me = identity.identify_self({})
    identity.write_identity(tmp_path / "process.json", me)
    assert identity.read_identity(tmp_path / "process.json") == me
    assert [p.name for p in tmp_path.iterdir()] == ["process.json"]


def test_a_missing_or_damaged_file_holds_nobody(tmp_path: Path) -> None:
    path = tmp_path / "process.json"
    assert identity.read_identity(path) is None
    for text in (
        "",
        "[]",
        "{}",
        '{"boot_id": 1, "pid": "x", "start_ticks": 1, "nonce": ""}',
        '{"boot_id": "b", "pid": 1e999, "start_ticks": 1, "nonce": ""}',
        "[" * 60_000,
        "\x00",
    ):
        path.write_text(text)
        assert identity.read_identity(path) is None
    path.unlink()
    os.mkfifo(path)
    assert identity.read_identity(path) is None


def test_a_signal_is_known_to_be_handled_only_where_it_is() -> None:
    assert not identity.handles_signal(os.getpid(), signal.SIGUSR1)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert identity.handles_signal(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not identity.handles_signal(2**22 + 1, signal.SIGUSR1)

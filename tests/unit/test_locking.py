"""Locks between processes: for their owner alone, never behind a link, and waited for with a deadline."""

import fcntl
import os
import pwd
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.errors import HomeError
from harness.store import locking
from harness.store.locking import exclusive

_NOBODY = 65_534


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".lock"


@contextmanager
def _another_holder(path: Path) -> Iterator[int]:
    """A process of another user, where that can be had, that keeps the lock file locked; its pid."""
    reading, writing = os.pipe()
    with path.open("w") as file:
        child = os.fork()
        if child == 0:
            if os.getuid() == 0:
                os.setuid(_NOBODY)
            fcntl.flock(file, fcntl.LOCK_EX)
            os.write(writing, b"held")
            signal.pause()
    try:
        assert os.read(reading, 4) == b"held"
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_a_lock_file_is_for_its_owner_alone_also_where_it_was_open_before(path: Path) -> None:
    path.touch()
    path.chmod(0o644)
    for _ in range(2):
        with exclusive(path):
            assert path.stat().st_mode & 0o777 == 0o600
        path.unlink()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_lock_that_another_user_keeps_ends_in_a_sentence_that_names_them(path: Path) -> None:
    clock = Clock()
    user = pwd.getpwuid(_NOBODY if os.getuid() == 0 else os.getuid()).pw_name
    with _another_holder(path) as pid:
        sentence = rf"locked for 10 s by process {pid} \(.+, of user {user}\); wait for it or end it"
        with pytest.raises(HomeError, match=sentence):
            exclusive(path, clock=clock, sleep=clock.sleep).__enter__()
    assert clock.now_s == pytest.approx(10.0, abs=0.1)
    with exclusive(path, patience_s=0.0):
        pass


def test_without_the_kernels_table_the_holder_is_another_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locking, "_LOCK_TABLE", path.with_name("no such table"))
    with exclusive(path), pytest.raises(HomeError, match="by another process; wait for it"):
        exclusive(path, patience_s=0.0).__enter__()


def test_threads_wait_for_one_another(path: Path) -> None:
    inside = []

    def work() -> None:
        with exclusive(path):
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == []


def test_a_link_is_not_followed_and_a_fifo_does_not_block(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("mine")
    target.chmod(0o644)
    path.symlink_to(target)
    with pytest.raises(HomeError, match="it is a link; remove it"):
        exclusive(path).__enter__()
    assert target.stat().st_mode & 0o777 == 0o644
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(HomeError, match="not a regular file"):
        exclusive(path).__enter__()
    with pytest.raises(HomeError, match="cannot be locked: no such file"):
        exclusive(path.parent / "gone" / ".lock").__enter__()

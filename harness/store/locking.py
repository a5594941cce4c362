"""Locks between processes (and threads) of one user, with a deadline: nobody waits for ever.

A lock belongs to an open file, so that the kernel drops it however its holder ends.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from harness.errors import HomeError

# A start holds a lock for the time it takes to list the runs and to start one process.
PATIENCE_S = 10.0
_POLL_S = 0.02
_LOCK_TABLE = Path("/proc/locks")


@contextmanager
def exclusive(
    path: Path,
    patience_s: float = PATIENCE_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Hold the lock file at `path`, which is created where it is missing, for its owner alone.

    Raises HomeError when the file cannot be used, or when another process keeps it for `patience_s`.
    """
    descriptor = _open(path)
    try:
        deadline_s = clock() + patience_s
        while not _try_lock(path, descriptor):
            if clock() >= deadline_s:
                raise HomeError(
                    f"{path} has been locked for {patience_s:g} s by {_holder_words(descriptor)}; "
                    "wait for it or end it, and try again."
                )
            sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    # O_NOFOLLOW: a link could lead to a file that somebody else holds locked.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
        raise HomeError(f"{path} cannot be locked: {reason}; remove it, and try again.") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise HomeError(f"{path} cannot be locked: it is no regular file; remove it, and try again.")
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


def _try_lock(path: Path, descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise HomeError(f"{path} cannot be locked: {error.strerror}; choose another home.") from None
    return True


def _holder_words(descriptor: int) -> str:
    """The process that holds the lock, in words: its id, program and user as far as they can be read."""
    pid = _holder_pid(os.fstat(descriptor))
    if pid is None:
        return "another process"
    try:
        process = psutil.Process(pid)
        return f"process {pid} ({process.name()}, of user {process.username()})"
    except psutil.Error:
        return f"process {pid}"


def _holder_pid(status: os.stat_result) -> int | None:
    """The holder by the kernel's table of locks, proc_locks(5); None where there is none, or it lives in
    another container."""
    try:
        lines = _LOCK_TABLE.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in lines:
        # 1: FLOCK  ADVISORY  WRITE 1234 fe:00:2279165 0 EOF; who waits has "->" after the number.
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == device and fields[4].isdigit():
            return int(fields[4]) or None
    return None

"""Locks between processes (and threads) of one user, with a deadline.

A lock belongs to an open file, so the kernel releases it when its holder ends in any way.
"""

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import HomeError

# A start locks for the time of listing the runs and starting one process.
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
    """Lock the file at `path`, which is created privately if it is missing.

    Raises HomeError when the file cannot be used, or another process does not release it within `patience_s`.
    """
    descriptor = _open(path)
    try:
        deadline_s = clock() + patience_s
        while not _try_lock(path, descriptor):
            if clock() >= deadline_s:
                raise HomeError(
                    f"{path} has been locked for {patience_s:g} s by {_describe_holder(descriptor)}; "
                    "wait for it or end it, and try again."
                )
            sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    # O_NOFOLLOW: a link could lead to a file that another user has locked.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else (error.strerror or str(error)).lower()
        raise HomeError(f"{path} cannot be locked: {reason}; remove it, and try again.") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise HomeError(f"{path} cannot be locked: it is not a regular file; remove it, and try again.")
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


def _describe_holder(descriptor: int) -> str:
    """Describe the process that holds the lock: pid, program and user, as far as they are readable."""
    pid = _holder_pid(os.fstat(descriptor))
    if pid is None:
        return "another process"
    import psutil  # Only here: it takes longer to import than a short command runs.

    try:
        process = psutil.Process(pid)
        return f"process {pid} ({process.name()}, of user {process.username()})"
    except psutil.Error:
        return f"process {pid}"


def _holder_pid(status: os.stat_result) -> int | None:
    """Return the holder from the kernel's table of locks, proc_locks(5); None if it is not listed, as from
    another container."""
    try:
        lines = _LOCK_TABLE.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in lines:
        # 1: FLOCK  ADVISORY  WRITE 1234 fe:00:2279165 0 EOF; a waiting process has "->" after the number.
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK" and fields[5] == device and fields[4].isdigit():
            return int(fields[4]) or None
    return None

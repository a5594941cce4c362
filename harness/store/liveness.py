"""The liveness of a training process: a lock on a file of its own, and a heartbeat in the file's mtime.

The file also contains the process's vital signs (`harness.store.vital_signs`).

The kernel releases the lock when the process ends in any way. The heartbeat distinguishes a running process
from one that hangs. Neither depends on the progress of the training.
"""

import fcntl
import os
import struct
import sys
import time
from pathlib import Path
from typing import NamedTuple

from harness.closing import Closing
from harness.files.regular import open_regular
from harness.store.vital_signs import VitalPage

# The time that `hold` waits for processes that test the lock at that moment.
_PATIENCE_S = 0.5


class Liveness(Closing):
    """The lock, while open. Not inherited over a fork.

    Attributes:
        signs: the page for the process's vital signs.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._is_missing = False
        self.signs = VitalPage(descriptor)
        # Read-only for others: truncating a mapped file would kill the process at its next store.
        os.fchmod(descriptor, 0o400)

    @classmethod
    def hold(cls, path: Path) -> "Liveness":
        """Acquire the lock on `path`; raises BlockingIOError when another process holds it."""
        liveness = cls(path, _open_locked(path))
        liveness.beat()
        return liveness

    def beat(self) -> None:
        """Update the heartbeat; if the file was deleted or replaced for two beats, create a new one."""
        if self._descriptor is None:
            return
        os.utime(self._descriptor)
        if self._is_in_place(self._descriptor):
            self._is_missing = False
        elif not self._is_missing:
            self._is_missing = True  # A new file at once would break an `rm -r` of the folder.
        else:
            self._recreate(self._descriptor)

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except OSError:
            return False

    def _recreate(self, before: int) -> None:
        """Lock a new file at the same path."""
        try:
            self._path.unlink(missing_ok=True)
            descriptor = _open_locked(self._path)
        except OSError:
            return
        self.signs.move_to(descriptor)
        os.fchmod(descriptor, 0o400)
        self._descriptor, self._is_missing = descriptor, False
        os.close(before)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._descriptor is not None:
            self.signs.close()
            os.close(self._descriptor)
            self._descriptor = None


def _open_locked(path: Path) -> int:
    """Open `path`, create it if it is missing, and lock it. Raises BlockingIOError, OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        if is_alive(path):
            raise BlockingIOError(f"{path} is held by another process") from None
        path.chmod(0o600)  # The process that made it read-only has ended.
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise BlockingIOError(f"{path} is held by another process") from None
            time.sleep(0.01)
        else:
            return descriptor


class LockHolder(NamedTuple):
    """The process that holds a lock. `pid` is None when the process is not visible: it is in another
    container or on another machine."""

    pid: int | None


def lock_holder(path: Path) -> LockHolder | None:
    """Return the process that holds the lock on `path`, from the kernel; None: no process. Never waits and
    takes no lock. A link, and anything but a regular file, counts as unlocked.

    Must not be called by the holder: POSIX locks belong to the process, and closing any descriptor of the
    file releases them.
    """
    try:
        descriptor = open_regular(path)
    except OSError:
        return None
    try:
        reply = fcntl.fcntl(descriptor, fcntl.F_GETLK, _pack_query())
    except OSError:
        return None
    finally:
        os.close(descriptor)
    kind, pid = _unpack_reply(reply)
    if kind == fcntl.F_UNLCK:
        return None
    return LockHolder(pid if pid > 0 else None)


# struct flock (fcntl(2)), for a lock on the whole file. The order of the fields differs on macOS.
_IS_DARWIN = sys.platform == "darwin"
_FLOCK = struct.Struct("@qqihh" if _IS_DARWIN else "@hhqqi0q")


def _pack_query() -> bytes:
    if _IS_DARWIN:
        return _FLOCK.pack(0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _unpack_reply(reply: bytes) -> tuple[int, int]:
    """Return the lock's kind and its holder's pid."""
    fields = _FLOCK.unpack(reply)
    return (fields[3], fields[2]) if _IS_DARWIN else (fields[0], fields[4])


def is_alive(path: Path) -> bool:
    """Return whether another process holds the lock on `path`, under the conditions of `lock_holder`."""
    return lock_holder(path) is not None


def heartbeat_age_s(path: Path, now_unix_s: float) -> float | None:
    """Return the seconds since the last heartbeat; None without one."""
    try:
        return max(0.0, now_unix_s - path.stat().st_mtime)
    except OSError:
        return None

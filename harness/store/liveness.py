"""Whether a training process lives: a lock on a file of its own, and a heartbeat in the file's mtime.

The file also holds the process's vital signs (`harness.store.vital_signs`).

The lock is the kernel's word: it goes with the process, however it ends. The heartbeat tells a process that
lives from one that no longer gets to run. Both say nothing about the training's own progress.
"""

import fcntl
import os
import struct
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from harness.regular_files import open_regular
from harness.store.vital_signs import VitalPage

# How long `hold` puts up with others who test the lock at that moment.
_PATIENCE_S = 0.5


class Liveness:
    """Holds the lock for as long as it is open. Not inherited over a fork.

    Attributes:
        signs: where the process leaves its vital signs.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor
        self._is_missing = False
        self.signs = VitalPage(descriptor)
        # The holder alone may write: to cut a mapped file short would kill it at its next store.
        os.fchmod(descriptor, 0o400)

    @classmethod
    def hold(cls, path: Path) -> "Liveness":
        """Take the lock on `path`; raises BlockingIOError when another process holds it."""
        held = cls(path, _open_locked(path))
        held.beat()
        return held

    def beat(self) -> None:
        """Say "I live" now; where the file was deleted or replaced, for two beats, in a new one."""
        if self._descriptor is None:
            return
        os.utime(self._descriptor)
        if self._is_in_place(self._descriptor):
            self._is_missing = False
        elif not self._is_missing:
            self._is_missing = True  # An `rm -r` of the whole folder would trip over a new file.
        else:
            self._begin_anew(self._descriptor)

    def _is_in_place(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except OSError:
            return False

    def _begin_anew(self, before: int) -> None:
        """Hold a new file at the same path."""
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
        """Let the lock go. Idempotent."""
        if self._descriptor is not None:
            self.signs.close()
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_locked(path: Path) -> int:
    """A descriptor of `path`, made where it is missing, with the lock. Raises BlockingIOError, OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except PermissionError:
        if is_alive(path):
            raise BlockingIOError(f"{path} is held by another process") from None
        path.chmod(0o600)  # Its holder, which made it read-only, is gone.
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
    """The process that holds a lock. `pid` is None where it cannot be seen from here: it lives in another
    container, or on another machine."""

    pid: int | None


def lock_holder(path: Path) -> LockHolder | None:
    """The process that holds the lock on the file at `path`, by the kernel's word; None: nobody. Never waits
    and takes no lock itself. A link, and anything but a regular file, is locked by nobody.

    Must not be called by the holder itself: POSIX locks belong to the process, and closing any descriptor of
    the file gives them up.
    """
    try:
        descriptor = open_regular(path)
    except OSError:
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _pack_query())
    except OSError:
        return None
    finally:
        os.close(descriptor)
    kind, pid = _unpack_answer(answer)
    if kind == fcntl.F_UNLCK:
        return None
    return LockHolder(pid if pid > 0 else None)


# struct flock (fcntl(2)), for a lock on the whole file. macOS orders the fields otherwise.
_IS_DARWIN = sys.platform == "darwin"
_FLOCK = struct.Struct("@qqihh" if _IS_DARWIN else "@hhqqi0q")


def _pack_query() -> bytes:
    if _IS_DARWIN:
        return _FLOCK.pack(0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


def _unpack_answer(answer: bytes) -> tuple[int, int]:
    """The lock's kind and its holder's pid."""
    fields = _FLOCK.unpack(answer)
    return (fields[3], fields[2]) if _IS_DARWIN else (fields[0], fields[4])


def is_alive(path: Path) -> bool:
    """Whether another process holds the lock on `path`. The conditions of `lock_holder` apply."""
    return lock_holder(path) is not None


def heartbeat_age_s(path: Path, now_unix_s: float) -> float | None:
    """Seconds since the last heartbeat; None when there never was one."""
    try:
        return max(0.0, now_unix_s - path.stat().st_mtime)
    except OSError:
        return None

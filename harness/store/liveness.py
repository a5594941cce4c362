"""Whether a training process lives: a lock on a file of its own, and a heartbeat in the file's mtime.

The lock is the kernel's word: it goes with the process, however it ends. The heartbeat tells a process that
lives from one that no longer gets to run. Both say nothing about the training's own progress.
"""

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.regular_files import open_regular

_PATIENCE_S = 0.5
"""How long `hold` puts up with others who test the lock at that moment."""


class Liveness:
    """Holds the lock for as long as it is open. Not inherited over a fork."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def hold(cls, path: Path) -> "Liveness":
        """Take the lock on `path`; raises BlockingIOError when another process holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError):
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    raise BlockingIOError(f"{path} is held by another process") from None
                time.sleep(0.01)
        held = cls(path, descriptor)
        held.beat()
        return held

    def beat(self) -> None:
        """Say "I live" now."""
        if self._descriptor is not None:
            os.utime(self._descriptor)

    def close(self) -> None:
        """Let the lock go. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_alive(path: Path) -> bool:
    """Whether another process holds the lock on `path`. Never waits.

    Not to be asked by the holder itself: POSIX locks belong to the process, and closing any descriptor of the
    file gives them up.
    """
    try:
        descriptor = open_regular(path)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(descriptor)
    return False


def heartbeat_age_s(path: Path, now_unix_s: float) -> float | None:
    """Seconds since the last heartbeat; None when there never was one."""
    try:
        return max(0.0, now_unix_s - path.stat().st_mtime)
    except OSError:
        return None

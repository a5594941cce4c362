"""An open run folder: it is followed when somebody renames it, and it is noticed when somebody deletes it."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.store.folder import RunFolder

_DESCRIPTORS = Path("/proc/self/fd")


class FolderHandle:
    """Keeps a run's folder open for as long as its process lives. A context manager.

    Attributes:
        steady: the folder under a path that leads into it wherever it is renamed to; where the system has no
            such paths (no /proc), the path it had at first.
    """

    def __init__(self, folder: RunFolder) -> None:
        """Open the folder. Raises OSError."""
        self._path = folder.path
        self._descriptor: int | None = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._link = _DESCRIPTORS / str(self._descriptor)
        self.steady = RunFolder(self._link) if self._link.exists() else folder

    def locate(self) -> Path | None:
        """Where the folder is by now; None when it was deleted."""
        if self._is_ours(self._path):
            return self._path
        try:
            moved = Path(os.readlink(self._link))
        except OSError:
            return None
        if not self._is_ours(moved):
            return None
        self._path = moved
        return moved

    def locate_log(self) -> Path | None:
        """Where the run's log belongs by now; None when the folder was deleted."""
        path = self.locate()
        return None if path is None else RunFolder(path).log

    def close(self) -> None:
        """Let the folder go. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_ours(self, path: Path) -> bool:
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._descriptor))
        except OSError:
            return False

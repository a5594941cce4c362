"""An open run folder, which stays valid when it is renamed and detects that it was deleted."""

import os
from pathlib import Path

from harness.closing import Closing
from harness.store.folder import RunFolder

_DESCRIPTORS = Path("/proc/self/fd")


class FolderHandle(Closing):
    """An open descriptor of a run's folder. A context manager.

    Attributes:
        steady: the folder under a path that stays valid after a rename; without /proc, the original path.
    """

    def __init__(self, folder: RunFolder) -> None:
        """Open the folder. Raises OSError."""
        self._path = folder.path
        self._rank = folder.rank
        self._descriptor: int | None = os.open(folder.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._link = _DESCRIPTORS / str(self._descriptor)
        self.steady = RunFolder(self._link, folder.rank) if self._link.exists() else folder

    def locate(self) -> Path | None:
        """Return the folder's current path; None when it was deleted."""
        if self._is_same(self._path):
            return self._path
        try:
            moved = Path(os.readlink(self._link))
        except OSError:
            return None
        if not self._is_same(moved):
            return None
        self._path = moved
        return moved

    def locate_log(self) -> Path | None:
        """Return the current path of the run's log; None when the folder was deleted."""
        path = self.locate()
        return None if path is None else RunFolder(path, self._rank).log

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _is_same(self, path: Path) -> bool:
        if self._descriptor is None:
            return False
        try:
            return os.path.samestat(os.stat(path), os.fstat(self._descriptor))
        except OSError:
            return False

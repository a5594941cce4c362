"""End of a run after its folder was deleted: no command could reach it any more."""

from collections.abc import Callable
from pathlib import Path

from harness.watch.inbox import Inbox


class FolderWatch:
    """A job of the sampler."""

    def __init__(self, locate: Callable[[], Path | None], path: Path, inbox: Inbox) -> None:
        """`locate` returns the folder's path, None if it was deleted; `path` is the original one."""
        self._locate = locate
        self._path = path
        self._inbox = inbox

    @property
    def message(self) -> str:
        """The reason for the end of the run."""
        return f"The folder of this run, {self._path}, was deleted while it trained."

    def check(self) -> None:
        """Stop the run at the end of its step if its folder was deleted."""
        if self._inbox.lost_folder is not None or self._locate() is not None:
            return
        self._inbox.lose_folder(self.message)

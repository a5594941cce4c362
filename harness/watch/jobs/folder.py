"""Ends a run after its folder was deleted: it could not be seen, steered or stopped any more."""

from collections.abc import Callable
from pathlib import Path

from harness.watch.inbox import Inbox


class FolderWatch:
    """A job of the sampler.

    Attributes:
        is_gone: the folder was deleted.
    """

    def __init__(self, locate: Callable[[], Path | None], path: Path, inbox: Inbox) -> None:
        """`locate` says where the folder is, None when it was deleted; `path` is what it was called."""
        self._locate = locate
        self._path = path
        self._inbox = inbox
        self.is_gone = False

    @property
    def message(self) -> str:
        """The reason for the end of the run."""
        return f"The folder of this run, {self._path}, was deleted while it trained, so it was stopped."

    def check(self) -> None:
        """Stop the run at the end of its step when its folder is gone."""
        if self.is_gone or self._locate() is not None:
            return
        self.is_gone = True
        self._inbox.stop(self.message)

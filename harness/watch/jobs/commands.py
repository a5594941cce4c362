"""Brings commands from control.sqlite3 to the training thread."""

import logging
import time
from collections.abc import Callable

from harness.errors import LogError
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.watch.inbox import Inbox

_LOGGER = logging.getLogger(__name__)
# A file whose last change is this old, and was seen since, has not changed unseen: the clock that stamps
# files is coarse, so two changes within one tick look like one.
_SETTLED_NS = 1_000_000_000


class CommandPoll:
    """A job of the sampler: passes new commands on to the inbox, each once. Used by one thread at a time."""

    def __init__(self, folder: RunFolder, inbox: Inbox, unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = folder.control
        self._control = ControlLog(folder)
        self._inbox = inbox
        self._unix_ns = unix_ns
        self._stamp: tuple[int, int] | None = None
        self._last_rowid = 0
        self._problem = ""

    def poll(self) -> None:
        """Take in what was sent since the last poll. One look at the file's date while nothing is sent."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return
        is_settled = self._unix_ns() - status.st_mtime_ns > _SETTLED_NS
        try:
            commands = self._control.commands(self._last_rowid)
        except LogError as error:
            # Given up, the run would hear nothing any more, also after the file was mended.
            if self._problem != (problem := str(error)):
                self._problem = problem
                _LOGGER.warning("No commands can be read: %s", problem)
            commands = []
        for rowid, command in commands:
            self._last_rowid = rowid
            self._inbox.put(command)
        self._stamp = stamp if is_settled and not self._control.is_unread else None

    def close(self) -> None:
        """Close the control file. Idempotent."""
        self._control.close()

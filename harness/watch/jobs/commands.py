"""Transfer of commands from control.sqlite3 to the training thread."""

import logging
import time
from collections.abc import Callable, Sequence

from harness.errors import LogError
from harness.records.run import CommandRow
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.safe_logger import SafeLogger
from harness.watch.inbox import Inbox

_LOGGER = SafeLogger(logging.getLogger(__name__))
# Once the last change is this old, an unchanged modification time means an unchanged file: file systems have
# coarse clocks, so two changes within one tick have the same time.
_SETTLED_NS = 1_000_000_000


class CommandPoll:
    """A job of the sampler: passes each new command to the inbox once. Used by one thread at a time."""

    def __init__(self, folder: RunFolder, inbox: Inbox, unix_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = folder.control
        self._control = ControlLog(folder)
        self._inbox = inbox
        self._unix_ns = unix_ns
        self._stamp: tuple[int, int] | None = None
        self._last_rowid = 0
        self._problem = ""

    def poll(self) -> None:
        """Pass on the commands sent since the last poll. Without any it only reads the file's modification
        time."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp == self._stamp:
            return
        is_settled = self._unix_ns() - status.st_mtime_ns > _SETTLED_NS
        try:
            # One read returns a limited number of commands.
            while commands := self._control.commands(self._last_rowid):
                self._pass_on(commands)
        except LogError as error:
            # The poll continues: the file may be repaired.
            if self._problem != (problem := str(error)):
                self._problem = problem
                _LOGGER.warning("No commands can be read: %s", problem)
        self._stamp = stamp if is_settled and not self._control.is_unread else None

    def close(self) -> None:
        """Close the control file. Idempotent."""
        self._control.close()

    def _pass_on(self, commands: Sequence[tuple[int, CommandRow]]) -> None:
        for rowid, command in commands:
            self._last_rowid = rowid
            self._inbox.put(command)

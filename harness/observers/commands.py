"""Brings commands from control.sqlite3 to the training thread."""

from harness.store.control import ControlLog
from harness.train.inbox import Inbox


class CommandPoll:
    """A job of the sampler: passes new commands on to the inbox, each once."""

    def __init__(self, control: ControlLog, inbox: Inbox) -> None:
        self._control = control
        self._inbox = inbox
        self._last_rowid = 0

    def poll(self) -> None:
        """Take in what was sent since the last poll. Cheap while nothing is sent."""
        for rowid, command in self._control.commands(self._last_rowid):
            self._last_rowid = rowid
            self._inbox.put(command)

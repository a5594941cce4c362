"""What is asked of a live run, on its way from other threads to the training thread."""

from collections import deque
from threading import Event

from harness.records import CommandRow


class Inbox:
    """Commands and a wish to stop. Filled by the sampler's thread and by signal handlers, emptied between two
    steps by the training thread.

    Attributes:
        commands: in the order they came; the training thread takes them from the left.
        stop_message: why the run should end, once it should.
        wake: set whenever something came in, for a run that waits.
    """

    def __init__(self) -> None:
        self.commands: deque[CommandRow] = deque()
        self.stop_message: str | None = None
        self.wake = Event()

    def put(self, command: CommandRow) -> None:
        """Hand a command to the training thread."""
        self.commands.append(command)
        self.wake.set()

    def stop(self, message: str) -> None:
        """End the run before its next step. The first reason given stays."""
        if self.stop_message is None:
            self.stop_message = message
        self.wake.set()

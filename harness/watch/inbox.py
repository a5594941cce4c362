"""Requests to a live run, on their way from other threads to the training thread."""

from collections import deque
from queue import Empty, SimpleQueue

from harness.records.run import CommandRow


class Inbox:
    """Commands and a wish to stop. Filled by the sampler's thread and by signal handlers, emptied between two
    steps by the training thread.

    Attributes:
        commands: in the order they came; the training thread takes them from the left.
        stop_message: why the run should end, once it should.
    """

    def __init__(self) -> None:
        self.commands: deque[CommandRow] = deque()
        self.stop_message: str | None = None
        # Not an Event: a signal handler that sets one while the same thread waits for it can lock up.
        self._bell: SimpleQueue[None] = SimpleQueue()

    def put(self, command: CommandRow) -> None:
        """Hand a command to the training thread."""
        self.commands.append(command)
        self._ring()

    def stop(self, message: str) -> None:
        """End the run before its next step. The first reason given stays."""
        if self.stop_message is None:
            self.stop_message = message
        self._ring()

    def wait(self, timeout_s: float) -> None:
        """Wait until something comes in, or came in since the last wait."""
        try:
            self._bell.get(timeout=timeout_s)
        except Empty:
            return

    def _ring(self) -> None:
        if self._bell.empty():
            self._bell.put(None)

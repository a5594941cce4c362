"""The queue of requests from other threads to the training thread."""

from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue

from harness.errors import HomeError
from harness.records.run import CommandRow


class Inbox:
    """Commands and a request to stop. The sampler's thread and signal handlers write to it, the training
    thread reads it between two steps.

    Attributes:
        commands: in the order of arrival; the training thread pops them from the left.
        stop_message: the reason to end the run; None while it continues.
        lost_folder: the message about the deleted folder of the run; None while it exists.
        on_entry: called after each entry, by whoever makes it; must not wait.
        on_stop_caught: called as a stop is taken back.
    """

    def __init__(self) -> None:
        self.commands: deque[CommandRow] = deque()
        self.stop_message: str | None = None
        self.lost_folder: str | None = None
        self.on_entry: Callable[[], None] = _ignore
        self.on_stop_caught: Callable[[], None] = _ignore
        # Not an Event: a signal handler that sets one while the same thread waits for it can lock up.
        self._bell: SimpleQueue[None] = SimpleQueue()

    def put(self, command: CommandRow) -> None:
        """Add a command."""
        self.commands.append(command)
        self._ring()

    def stop(self, message: str) -> None:
        """End the run before its next step. The first reason given stays."""
        if self.stop_message is None:
            self.stop_message = message
        self._ring()

    def lose_folder(self, message: str) -> None:
        """End the run before its next step, as nothing can reach it any more."""
        self.lost_folder = message
        self.stop(message)

    def check_folder(self) -> None:
        """Raise HomeError if the folder of the run was deleted."""
        if self.lost_folder is not None:
            raise HomeError(self.lost_folder)

    def stop_was_caught(self) -> None:
        """Take the stop back: the script caught it and goes on."""
        self.stop_message = None
        self.on_stop_caught()

    def wait(self, timeout_s: float) -> None:
        """Wait for a new entry since the last wait."""
        try:
            self._bell.get(timeout=timeout_s)
        except Empty:
            return

    def _ring(self) -> None:
        self.on_entry()
        if self._bell.empty():
            self._bell.put(None)


def _ignore() -> None:
    """Nobody is to be called."""

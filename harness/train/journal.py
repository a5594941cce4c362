"""Where the training thread writes down what happened, and what it writes beside every step."""

from dataclasses import dataclass
from typing import Protocol

from harness.records import RunState, StepFlag
from harness.store.inserts import Row


class Journal(Protocol):
    """Where what happened is written down; never blocks."""

    def put(self, row: Row) -> None:
        """Record a row."""
        ...

    def set_state(self, state: RunState, message: str, timeout_s: float = ...) -> bool:
        """Record that the run is now in `state`; waits at most `timeout_s` for the disk."""
        ...


@dataclass
class Marks:
    """What is written beside every step: which settings are in effect, and what is special about it."""

    settings_version: int = 1
    flags: int = int(StepFlag.WARM_UP)

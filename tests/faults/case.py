"""One faulty run as it is handed from the scenarios to the process that forks it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Case:
    """A run's folder, and the fault that its own process arms."""

    folder: str
    first_write: int = 0
    """The first call to write the log that fails; 0: none."""
    failing_writes: int = 1
    error: int = 0
    """The errno of these calls."""
    clock_shift_s: int = 0
    """By how much the wall clock jumps after the step `at_step`."""
    at_step: int = 0

    def to_line(self) -> str:
        """The case as one line of text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Self:
        """The case that `to_line` wrote."""
        return cls(**json.loads(line))

    @property
    def curve(self) -> Path:
        """Return where the process keeps the loss of each step, out of reach of the log's faults."""
        return Path(self.folder).with_suffix(".curve")

    @property
    def report(self) -> Path:
        """Return where the process says, at its end, how many calls failed."""
        return Path(self.folder).with_suffix(".report")

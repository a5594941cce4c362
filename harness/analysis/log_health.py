"""Whether a run's log is being written, and how many steps it lacks, in sentences."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from harness import words

# The log is written four times a second; after this long without, a person should know.
UNWRITTEN_LIMIT_S = 5.0

_CRASH = re.compile(r"Fatal Python error: (.+)")
_LOST_ROWS = re.compile(r"The log could not be written to its end; (.+) are lost\.")
_HINTS = {
    "full": "is the disk full?",
    "locked": "does another program hold it locked?",
    "readonly": "may the folder be written?",
    "": "is the disk full?",
}


class LogHealth(NamedTuple):
    """What the process says about its steps, beside what the log says.

    `finished_step` is the number of the last finished step, `logged_step` that of the last one in the log,
    and `logged_steps` how many are in it. `unwritten_s` is how long rows have been waiting for the log,
    since `unwritten_since_unix_ns`; None while none are. `reason` is why, empty while that is not known.
    """

    finished_step: int
    logged_step: int | None = None
    logged_steps: int = 0
    unwritten_since_unix_ns: int | None = None
    unwritten_s: float | None = None
    reason: str = ""

    @property
    def is_unwritten(self) -> bool:
        """Whether rows have been waiting for so long that a person should know."""
        return self.unwritten_s is not None and self.unwritten_s >= UNWRITTEN_LIMIT_S

    @property
    def counts(self) -> bool:
        """Whether steps were counted at all: not before the first one, nor by a process that does not."""
        return self.finished_step > 0 and self.finished_step >= (self.logged_step or 0)

    @property
    def missing_steps(self) -> int:
        """How many finished steps the log lacks."""
        return max(0, self.finished_step - self.logged_steps)


def unwritten_sentence(health: LogHealth) -> str:
    """That training goes on and its log is not written, since when, and why."""
    step = f" at step {words.count(health.finished_step)}" if health.finished_step else ""
    since_s = (health.unwritten_since_unix_ns or 0) / 1e9
    since = datetime.fromtimestamp(since_s).strftime("%H:%M:%S")
    start = f"Training{step}, but its log is not written since {since}"
    for word, hint in _HINTS.items():
        if (word and word in health.reason) or health.reason == word:
            return f"{start}{f' ({health.reason})' if health.reason else ''}: {hint}"
    return f"{start}: {health.reason}."


def missing_sentence(health: LogHealth) -> str:
    """How many steps of an ended run its log lacks. Only where steps were counted."""
    if not health.missing_steps:
        return "Everything is in the log."
    logged_step = health.logged_step
    if logged_step is None:
        return f"None of its {words.plural(health.finished_step, 'step')} is in the log.{_why(health)}"
    at_the_end = max(0, health.finished_step - logged_step)
    before = max(0, health.missing_steps - at_the_end)
    parts = []
    if at_the_end:
        were = "was" if at_the_end == 1 else "were"
        at = words.count(logged_step)
        parts.append(f"{words.plural(at_the_end, 'step')} after step {at} {were} not in the log yet")
    if before:
        are = "is" if before == 1 else "are"
        parts.append(f"{words.plural(before, 'step')} up to step {words.count(logged_step)} {are} missing")
    return f"{'; '.join(parts)}.{_why(health)}"


def _why(health: LogHealth) -> str:
    if health.unwritten_since_unix_ns is None or not health.reason:
        return ""
    return f" The log could not be written: {health.reason}."


def crash(output: Sequence[str]) -> str | None:
    """How native code crashed, as the end of the run's output has it: "Segmentation fault"."""
    return _last_match(_CRASH, output)


def lost_rows(output: Sequence[str]) -> str | None:
    """What the process itself said it could not write: "4,944 steps and 3 other rows"."""
    return _last_match(_LOST_ROWS, output)


def _last_match(pattern: re.Pattern[str], output: Sequence[str]) -> str | None:
    found = [match[1].strip() for line in output if (match := pattern.search(line))]
    return found[-1] if found else None

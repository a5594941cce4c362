"""State of a run's log: rows waiting to be written, and missing steps, in sentences."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from harness import words

# The log is written four times per second; a longer delay is worth a warning.
UNWRITTEN_LIMIT_S = 5.0

_CRASH = re.compile(r"Fatal Python error: (.+)")
# The writer's last message, in the run's output; earlier versions had another wording.
LOST_ROWS = "The log could not be completed; %s are lost."
_SIGNAL_NOTE = re.compile(r"^\[stepscope\] stop: .*, sending (SIGTERM|SIGKILL) to the process group$")
_LOST_ROWS = re.compile(r"The log could not be (?:completed|written to its end); (.+) are lost\.")
_HINTS = {
    "full": "is the disk full?",
    "locked": "is it locked by another program?",
    "readonly": "is the folder writable?",
    "": "is the disk full?",
}


class LogHealth(NamedTuple):
    """Finished steps as counted by the process, and steps in its log.

    `finished_step` is the number of the last finished step, `logged_step` that of the last step in the log,
    and `logged_steps` the number of steps in it. Rows have been waiting for the log for `unwritten_s`, since
    `unwritten_since_unix_ns`; both are None while none wait. `reason` is the cause, empty while unknown.
    """

    finished_step: int
    logged_step: int | None = None
    logged_steps: int = 0
    unwritten_since_unix_ns: int | None = None
    unwritten_s: float | None = None
    reason: str = ""

    @property
    def is_unwritten(self) -> bool:
        """True when rows have been waiting long enough for a warning."""
        return self.unwritten_s is not None and self.unwritten_s >= UNWRITTEN_LIMIT_S

    @property
    def counts(self) -> bool:
        """True when steps were counted: not before the first one, nor by a process that does not count."""
        return self.finished_step > 0 and self.finished_step >= (self.logged_step or 0)

    @property
    def missing_steps(self) -> int:
        """Number of finished steps that are not in the log."""
        return max(0, self.finished_step - self.logged_steps)


def unwritten_sentence(health: LogHealth) -> str:
    """Warning that training continues while its log is not written, with time and reason."""
    step = f" at step {words.count(health.finished_step)}" if health.finished_step else ""
    since = words.moment(health.unwritten_since_unix_ns)
    start = f"Training{step}, but its log is not written since {since}"
    for key, hint in _HINTS.items():
        if (key and key in health.reason) or health.reason == key:
            return f"{start}{f' ({health.reason})' if health.reason else ''}: {hint}"
    return f"{start}: {health.reason}."


def missing_sentence(health: LogHealth) -> str:
    """Number of steps of a finished run that are not in its log. Only where steps were counted."""
    if not health.missing_steps:
        return "Everything is in the log."
    logged_step = health.logged_step
    if logged_step is None:
        return f"None of its {words.plural(health.finished_step, 'step')} is in the log.{_why(health)}"
    at_end = max(0, health.finished_step - logged_step)
    before = max(0, health.missing_steps - at_end)
    parts = []
    if at_end:
        were = "was" if at_end == 1 else "were"
        at = words.count(logged_step)
        parts.append(f"{words.plural(at_end, 'step')} after step {at} {were} not in the log yet")
    if before:
        are = "is" if before == 1 else "are"
        parts.append(f"{words.plural(before, 'step')} up to step {words.count(logged_step)} {are} missing")
    return f"{'; '.join(parts)}.{_why(health)}"


def _why(health: LogHealth) -> str:
    if health.unwritten_since_unix_ns is None or not health.reason:
        return ""
    return f" The log could not be written: {health.reason}."


def crash(output: Sequence[str]) -> str | None:
    """Crash of native code, from the end of the run's output: "Segmentation fault"."""
    return _last_match(_CRASH, output)


def lost_rows(output: Sequence[str]) -> str | None:
    """Rows that the process reported as not written: "4,944 steps and 3 other rows"."""
    return _last_match(_LOST_ROWS, output)


def signal_note(reason: str, name: str) -> str:
    """Return the line for the run's output about a signal that is about to stop it."""
    return f"stop: {reason}, sending {name} to the process group"


def signal_sent(output: Sequence[str]) -> str | None:
    """The last signal that was sent to stop the run, as `signal_note` names it: "SIGTERM"."""
    return _last_match(_SIGNAL_NOTE, output)


def _last_match(pattern: re.Pattern[str], output: Sequence[str]) -> str | None:
    matches = [match[1].strip() for line in output if (match := pattern.search(line))]
    return matches[-1] if matches else None

"""Counts of data missing from a log, and the event that reports them once the log is writable again."""

import json
from typing import NamedTuple

from harness import words
from harness.analysis.log_health import UNWRITTEN_LIMIT_S
from harness.records.run import EventKind, EventRow, Severity

_MOST_NAMED = 10
# Characters of the error of a rejected row.
_LONGEST_NOTE = 200


class Outage(NamedTuple):
    """A time without writes to the log; `since_ns` counts from the run's start."""

    since_ns: int
    reason: str


class Gap:
    """Mutable counts of missing data.

    Attributes:
        dropped_steps: steps that were dropped from the full buffer, up to the step `last_dropped`.
        dropped_samples: samples that were dropped from the full buffer.
        outage: the current outage; None while the log is writable.
        waiting_steps: the number of steps that were buffered during the outage.
        renewals: one sentence about the log's files for each new log.
        missing_steps: steps that were written to a file that was then damaged, and could not be recovered.
    """

    def __init__(self) -> None:
        self.dropped_steps = 0
        self.dropped_samples = 0
        self.last_dropped = 0
        self.outage: Outage | None = None
        self.waiting_steps = 0
        self.renewals: list[str] = []
        self.missing_steps = 0
        self._unwritable: list[str] = []

    def add_unwritable(self, note: str) -> None:
        """Count a row that no log can store."""
        text = note.encode("utf-8", "replace").decode()
        self._unwritable.append(text[:_LONGEST_NOTE])

    @property
    def is_empty(self) -> bool:
        """True when nothing is missing."""
        return not (self.dropped_steps or self.dropped_samples or self._unwritable or self.renewals)

    def is_reportable(self, t_ns: int) -> bool:
        """Return whether there is something to report at the run's time `t_ns`."""
        return not self.is_empty or self._outage_s(t_ns) is not None

    def event(self, t_ns: int, last_step: int) -> EventRow:
        """Return the event that reports the missing data, at the run's time `t_ns`."""
        detail = {
            "dropped_steps": self.dropped_steps,
            "dropped_samples": self.dropped_samples,
            "missing_steps": self.missing_steps,
            "unusable": self._unwritable[:_MOST_NAMED],
        }
        sentences = [*self.renewals]
        if (outage_s := self._outage_s(t_ns)) is not None and self.outage is not None:
            detail |= {
                "outage_s": outage_s,
                "reason": self.outage.reason,
                "waiting_steps": self.waiting_steps,
            }
            waiting = words.plural(self.waiting_steps, "step")
            sentences.append(
                f"The log was not written for {words.span(outage_s)} ({self.outage.reason}); {waiting} "
                "were buffered in memory."
            )
        if missing := self._missing():
            sentences.append(f"The log is incomplete: {missing}.")
        return EventRow(
            t_ns=t_ns,
            step=self.last_dropped if self.dropped_steps else last_step,
            kind=EventKind.GAP,
            severity=Severity.WARNING,
            label="new log" if self.renewals else "gap in the log",
            message=" ".join(sentences),
            detail=json.dumps(detail),
            command_id=None,
        )

    def _outage_s(self, t_ns: int) -> float | None:
        """Return the duration of the outage if it is long enough to report."""
        if self.outage is None:
            return None
        seconds = (t_ns - self.outage.since_ns) / 1e9
        return seconds if seconds >= UNWRITTEN_LIMIT_S else None

    def _missing(self) -> str:
        lost = []
        if self.dropped_steps:
            lost.append(f"{words.plural(self.dropped_steps, 'step')} up to step {self.last_dropped:,}")
        if self.dropped_samples:
            lost.append(words.plural(self.dropped_samples, "sample"))
        reasons = []
        if lost:
            reasons.append(f"{' and '.join(lost)} could not be written in time and were dropped")
        if self._unwritable:
            rows = words.plural(len(self._unwritable), "row")
            reasons.append(f"{rows} could not be stored ({self._unwritable[0]})")
        return "; ".join(reasons)

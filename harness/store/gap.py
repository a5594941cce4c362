"""What a log lacks and why: counted while it happens, and said by one event when the log is written again."""

import json
from typing import NamedTuple

from harness import words
from harness.analysis.log_health import UNWRITTEN_LIMIT_S
from harness.records import EventKind, EventRow, Severity

_MOST_NAMED = 10
# Of a refused row's error: enough to tell what it was.
_LONGEST_NOTE = 200


class Outage(NamedTuple):
    """A time in which the log was not written; `since_ns` counts from the run's start."""

    since_ns: int
    reason: str


class Gap:
    """Mutable counts of what is missing.

    Attributes:
        dropped_steps: steps that waited for too long, up to the step `last_dropped`.
        dropped_samples: samples that did.
        outage: since when the log is not written; None: it is.
        waiting_steps: how many steps waited in memory meanwhile.
        renewals: what became of the log's files, one sentence each time it was begun anew.
        missing_steps: steps that were written to a file which was then damaged, and could not be read back.
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
        """Count a row that no log can hold."""
        text = note.encode("utf-8", "replace").decode()
        self._unwritable.append(text[:_LONGEST_NOTE])

    @property
    def is_empty(self) -> bool:
        """Whether nothing is missing."""
        return not (self.dropped_steps or self.dropped_samples or self._unwritable or self.renewals)

    def is_worth_saying(self, t_ns: int) -> bool:
        """Whether, at the run's time `t_ns`, there is something for the event to say."""
        return not self.is_empty or self._outage_s(t_ns) is not None

    def event(self, t_ns: int, last_step: int) -> EventRow:
        """The event that says what is missing, at the run's time `t_ns`."""
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
                "waited in memory meanwhile."
            )
        if missing := self._missing():
            sentences.append(f"Something is missing from the log: {missing}.")
        return EventRow(
            t_ns=t_ns,
            step=self.last_dropped if self.dropped_steps else last_step,
            kind=EventKind.GAP,
            severity=Severity.WARNING,
            label="log begun anew" if self.renewals else "gap in the log",
            message=" ".join(sentences),
            detail=json.dumps(detail),
            command_id=None,
        )

    def _outage_s(self, t_ns: int) -> float | None:
        """How long the log was not written, where that is worth a sentence."""
        if self.outage is None:
            return None
        seconds = (t_ns - self.outage.since_ns) / 1e9
        return seconds if seconds >= UNWRITTEN_LIMIT_S else None

    def _missing(self) -> str:
        lost = []
        if self.dropped_steps:
            lost.append(f"{self.dropped_steps:,} steps up to step {self.last_dropped:,}")
        if self.dropped_samples:
            lost.append(f"{self.dropped_samples:,} samples")
        reasons = []
        if lost:
            reasons.append(f"the disk did not take {' and '.join(lost)} in time")
        if self._unwritable:
            reasons.append(f"{len(self._unwritable):,} rows could not be stored ({self._unwritable[0]})")
        return "; ".join(reasons)

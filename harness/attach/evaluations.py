"""The events of the evaluations that a script makes between its steps."""

import json

from harness import words
from harness.records.run import EventKind, EventRow, Severity
from harness.watch.context import RunContext
from harness.watch.memory import MemoryWatch

# Evaluations that follow each other faster have one event.
EVENT_NS = 10_000_000_000
# Of the run's duration, the least between two events. A run of a week then has at most 750 of them: of all
# events the newest 2,000 are read (`harness.store.reader.MOST_EVENTS`), among them changes of settings.
EVENT_SHARE = 0.01


class Evaluations:
    """Adds up evaluations, and records them as events.

    Attributes:
        waiting_ns: the duration of those that have no event yet.
    """

    def __init__(self, context: RunContext, memory: MemoryWatch) -> None:
        self._context = context
        self._memory = memory
        self._peak_bytes = 0
        self.waiting_ns = self._waiting = 0
        self._event_ns: int | None = None
        self._last_ns = self._last_step = 0

    def left_out(self, duration_ns: int) -> None:
        """An evaluation has gone on for `duration_ns`. Its peak of the memory is not the next step's."""
        self._peak_bytes = max(self._peak_bytes, self._memory.leave_out(duration_ns) or 0)

    def add(self, duration_ns: int, step: int) -> None:
        """Add an evaluation before `step`, and record all that wait if the last event is long ago."""
        now_ns = self._context.clock_ns()
        if duration_ns:
            self.waiting_ns += duration_ns
            self._waiting += 1
            self._last_ns, self._last_step = now_ns, step
        least_ns = max(EVENT_NS, int(EVENT_SHARE * now_ns))
        if self._event_ns is None or now_ns - self._event_ns >= least_ns:
            self.record()

    def record(self) -> None:
        """Record all that wait, with the time and the step of the last one."""
        if not self.waiting_ns:
            return
        duration_ns, count = self.waiting_ns, self._waiting
        self._event_ns, self.waiting_ns, self._waiting = self._context.clock_ns(), 0, 0
        duration = words.duration(duration_ns)
        message = f"Evaluation took {duration}; it belongs to no step."
        if count > 1:
            message = f"{words.count(count)} evaluations took {duration} together; they belong to no step."
        detail: dict[str, int] = {"duration_ns": duration_ns}
        if self._peak_bytes:
            message += f" The memory reached {words.size(self._peak_bytes)} meanwhile."
            detail["peak_bytes"] = self._peak_bytes
            self._peak_bytes = 0
        event = EventKind.EVALUATION, Severity.INFO, "evaluation", message, json.dumps(detail), None
        self._context.journal.put(EventRow(self._last_ns, self._last_step, *event))

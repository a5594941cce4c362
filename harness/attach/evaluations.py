"""The events of the evaluations that a script makes between its steps."""

import json

from harness import words
from harness.records.run import EventKind, EventRow, Severity
from harness.watch.context import RunContext

# Evaluations that follow each other faster have one event.
EVENT_NS = 10_000_000_000


class Evaluations:
    """Adds up evaluations, and records them as events.

    Attributes:
        waiting_ns: the duration of those that have no event yet.
    """

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self.waiting_ns = 0
        self._event_ns: int | None = None

    def add(self, duration_ns: int, step: int) -> None:
        """Add an evaluation before `step`, and record all that wait if the last event is long ago."""
        self.waiting_ns += duration_ns
        if self._event_ns is None or self._context.clock_ns() - self._event_ns >= EVENT_NS:
            self.record(step)

    def record(self, step: int) -> None:
        """Record all that wait, with `step`."""
        if not self.waiting_ns:
            return
        now_ns, duration_ns = self._context.clock_ns(), self.waiting_ns
        self._event_ns, self.waiting_ns = now_ns, 0
        message = f"Evaluation took {words.duration(duration_ns)}; it belongs to no step."
        detail = json.dumps({"duration_ns": duration_ns})
        event = EventKind.EVALUATION, Severity.INFO, "evaluation", message, detail, None
        self._context.journal.put(EventRow(now_ns, step, *event))

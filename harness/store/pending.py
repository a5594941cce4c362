"""What waits to be written: bounded, with a count of what had to be dropped.

Events, acknowledgements, settings and states are never dropped; steps and samples are, the oldest first, when
the log cannot be written for too long.
"""

import json
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence

from harness.memory_records import MemorySampleRow
from harness.records import EventKind, EventRow, Severity, StepRow
from harness.store.appender import LogAppender, Row, StateChange, TelemetryRow

_MOST_AT_ONCE = 5_000
"""Steps in one transaction, so that a backlog is not written as one huge one."""
_MOST_SAMPLES = 4_000
_LATER = (sqlite3.OperationalError, sqlite3.InternalError, MemoryError)
"""What says nothing about the rows: they are kept and tried again."""


class Pending:
    """Rows that wait for the writer's next transaction. Used by the writer's thread alone."""

    def __init__(self, max_steps: int) -> None:
        self._steps: deque[StepRow] = deque()
        self._samples: deque[TelemetryRow | MemorySampleRow] = deque()
        self._kept: list[Row] = []
        self.states: list[StateChange] = []
        self._max_steps = max_steps
        self._dropped_steps = 0
        self._dropped_samples = 0
        self._last_dropped = 0
        self._unwritable: list[str] = []
        self.last_step = 0

    def __str__(self) -> str:
        others = len(self._kept) + len(self._samples) + len(self.states)
        return f"{len(self._steps):,} steps and {others:,} other rows"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self._steps or self._samples or self._kept or self.states or self._lost)

    @property
    def _lost(self) -> int:
        return self._dropped_steps + self._dropped_samples + len(self._unwritable)

    def add(self, row: Row) -> None:
        """Take a row; of samples only the newest few thousand are kept."""
        if not isinstance(row, TelemetryRow | MemorySampleRow):
            self._kept.append(row)
            return
        if len(self._samples) >= _MOST_SAMPLES:
            self._samples.popleft()
            self._dropped_samples += 1
        self._samples.append(row)

    def add_steps(self, steps: Sequence[StepRow]) -> None:
        """Take steps; only the newest `max_steps` are kept."""
        self._steps.extend(steps)
        self.last_step = steps[-1].step
        while len(self._steps) > self._max_steps:
            self._last_dropped = self._steps.popleft().step
            self._dropped_steps += 1

    def write_to(self, appender: LogAppender, clock_ns: Callable[[], int], durable: bool) -> None:
        """Write everything; raises sqlite3.OperationalError when the disk does not take it, MemoryError when
        memory ran short, and keeps what is not written. A row that no log can hold is left out and reported.
        """
        while True:
            steps = [self._steps[i] for i in range(min(len(self._steps), _MOST_AT_ONCE))]
            last = len(steps) == len(self._steps)
            rows: list[Row] = [*self._kept, *self._samples] if last else []
            if last and self._lost:
                rows.append(self._gap(clock_ns()))
            try:
                appender.append(steps, rows, self.states if last else (), durable and last)
            except _LATER:
                raise
            except (sqlite3.Error, OverflowError):
                self._drop_unwritable(appender)
                continue
            for _ in steps:
                self._steps.popleft()
            if last:
                self._kept.clear()
                self._samples.clear()
                self.states.clear()
                self._dropped_steps = self._dropped_samples = 0
                self._unwritable.clear()
                return

    def _drop_unwritable(self, appender: LogAppender) -> None:
        """Write the rows one by one and leave out those that cannot be bound or break a constraint."""
        steps, self._steps = self._steps, deque()
        while steps:
            step = steps.popleft()
            try:
                appender.append([step])
            except _LATER:
                steps.appendleft(step)
                self._steps = steps
                raise
            except (sqlite3.Error, OverflowError) as error:
                self._unwritable.append(f"step {step.step}: {error}")
        rows: list[Row] = [*self._kept, *self._samples]
        self._kept.clear()
        self._samples.clear()
        for index, row in enumerate(rows):
            try:
                appender.append(rows=[row])
            except _LATER:
                for left in rows[index:]:
                    self.add(left)
                raise
            except (sqlite3.Error, OverflowError) as error:
                self._unwritable.append(f"{type(row).__name__}: {error}")

    def _gap(self, t_ns: int) -> EventRow:
        lost = []
        if self._dropped_steps:
            lost.append(f"{self._dropped_steps:,} steps up to step {self._last_dropped:,}")
        if self._dropped_samples:
            lost.append(f"{self._dropped_samples:,} samples")
        reasons = []
        if lost:
            reasons.append(f"the disk did not take {' and '.join(lost)} in time")
        if self._unwritable:
            reasons.append(f"{len(self._unwritable):,} rows could not be stored ({self._unwritable[0]})")
        detail = {
            "dropped_steps": self._dropped_steps,
            "dropped_samples": self._dropped_samples,
            "unusable": self._unwritable[:10],
        }
        return EventRow(
            t_ns=t_ns,
            step=self._last_dropped if self._dropped_steps else self.last_step,
            kind=EventKind.GAP,
            severity=Severity.WARNING,
            label="gap in the log",
            message=f"Something is missing from the log: {'; '.join(reasons)}.",
            detail=json.dumps(detail),
            command_id=None,
        )

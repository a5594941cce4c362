"""The bounded buffer of rows to write, with a count of dropped rows.

Events, acknowledgments, settings and states are never dropped; of steps and samples the oldest are, when the
log is not writable for too long.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import get_args

from harness.records.memory import MemorySampleRow
from harness.records.overhead import UnobservedRow
from harness.records.run import StepRow
from harness.store.appender import LogAppender
from harness.store.error_causes import ROW_ERRORS, Blame, blame, reason
from harness.store.gap import Gap
from harness.store.inserts import Row, StateChange, TelemetryRow

# Steps per transaction, so that a backlog is not one huge transaction.
_MOST_AT_ONCE = 5_000
_MOST_SAMPLES = 4_000
_SAMPLES = frozenset({*get_args(TelemetryRow), MemorySampleRow})
# The first error drops rows, the second may drop the event that reports them; the limit ends the loop.
_MOST_REFUSALS = 3


class Pending:
    """Rows for the writer's next transaction. Only for the writer's thread.

    Attributes:
        states: changes of the run's state, in order.
        gap: the counts of missing data, for the event that reports them.
        last_step: the number of the newest step, observed or not; 0 before the first.
    """

    def __init__(self, max_steps: int) -> None:
        self._steps: deque[StepRow] = deque()
        self._samples: deque[TelemetryRow | MemorySampleRow] = deque()
        self._others: list[Row] = []
        self.states: list[StateChange] = []
        self._max_steps = max_steps
        self.gap = Gap()
        self.last_step = 0

    def __str__(self) -> str:
        count = len(self._others) + len(self._samples) + len(self.states)
        return f"{self.gap.dropped_steps + len(self._steps):,} steps and {count:,} other rows"

    @property
    def is_empty(self) -> bool:
        """True without anything to write."""
        return self.gap.is_empty and not (self._steps or self._samples or self._others or self.states)

    @property
    def steps(self) -> int:
        """The number of buffered steps."""
        return len(self._steps)

    def add(self, row: Row) -> None:
        """Add a row; of samples only the newest few thousand are retained."""
        if type(row) not in _SAMPLES:  # First, because `isinstance` of so many kinds takes longer.
            self._others.append(row)
            if isinstance(row, UnobservedRow):  # It comes before the observed steps ahead of it.
                self.last_step = max(self.last_step, row.last_step)
            return
        assert isinstance(row, TelemetryRow | MemorySampleRow)
        if len(self._samples) >= _MOST_SAMPLES:
            self._samples.popleft()
            self.gap.dropped_samples += 1
        self._samples.append(row)

    def add_steps(self, steps: Sequence[StepRow]) -> None:
        """Add steps; only the newest `max_steps` are retained."""
        self._steps.extend(steps)
        self.last_step = max(self.last_step, steps[-1].step)
        while len(self._steps) > self._max_steps:
            self.gap.last_dropped = self._steps.popleft().step
            self.gap.dropped_steps += 1

    def clear(self) -> None:
        """Drop everything, because the log is no longer written."""
        self.gap.dropped_steps += len(self._steps)
        self._steps.clear()
        self._samples.clear()
        self._others.clear()
        self.states.clear()

    def write_to(self, appender: LogAppender, clock_ns: Callable[[], int], durable: bool) -> None:
        """Write everything. Raises sqlite3.Error or MemoryError, and retains what is not written. A row that
        no log can store is dropped and reported.
        """
        errors = 0
        while True:
            steps = list(islice(self._steps, _MOST_AT_ONCE))
            last = len(steps) == len(self._steps)
            rows: list[Row] = [*self._others, *self._samples] if last else []
            if last and self.gap.is_reportable(now_ns := clock_ns()):
                rows.append(self.gap.event(now_ns, self.last_step))
            try:
                appender.append(steps, rows, self.states if last else (), durable and last)
            except ROW_ERRORS as error:
                errors += 1
                if blame(error) is not Blame.ROW or errors > _MOST_REFUSALS:
                    raise
                self._drop_unwritable(appender)
                continue
            for _ in steps:
                self._steps.popleft()
            if last:
                self._others.clear()
                self._samples.clear()
                self.states.clear()
                self.gap = Gap()
                return

    def _drop_unwritable(self, appender: LogAppender) -> None:
        """Write the rows one by one and drop those that cannot be bound or violate a constraint."""
        steps, self._steps = self._steps, deque()
        rows: deque[Row] = deque([*self._others, *self._samples])
        states, self.states = deque(self.states), []
        self._others.clear()
        self._samples.clear()
        try:
            while steps:
                self._write_one(partial(appender.append, [steps[0]]), f"step {steps[0].step}")
                steps.popleft()
            while rows:
                self._write_one(partial(appender.append, rows=[rows[0]]), type(rows[0]).__name__)
                rows.popleft()
            while states:
                self._write_one(partial(appender.append, states=[states[0]]), f"state {states[0].state}")
                states.popleft()
        finally:  # What an error left waits for the next write.
            self._steps.extend(steps)
            for row in rows:
                self.add(row)
            self.states.extend(states)

    def _write_one(self, write: Callable[[], object], name: str) -> None:
        """Write a row, or count it where the error blames it; raises every other error."""
        try:
            write()
        except (*ROW_ERRORS, MemoryError) as error:
            if blame(error) is not Blame.ROW:
                raise
            self.gap.add_unwritable(f"{name}: {reason(error)}")

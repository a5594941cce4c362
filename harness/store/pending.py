"""What waits to be written: bounded, with a count of what had to be dropped.

Events, acknowledgements, settings and states are never dropped; steps and samples are, the oldest first, when
the log cannot be written for too long.
"""

from collections import deque
from collections.abc import Callable, Sequence

from harness.memory_records import MemorySampleRow
from harness.records import StepRow
from harness.store.appender import LogAppender
from harness.store.faults import ROW_ERRORS, Blame, blame, reason
from harness.store.gap import Gap
from harness.store.inserts import Row, StateChange, TelemetryRow

# Steps in one transaction, so that a backlog is not written as one huge one.
_MOST_AT_ONCE = 5_000
_MOST_SAMPLES = 4_000
# The first refusal drops rows, a second one may drop what reports them; more would not end.
_MOST_REFUSALS = 3


class Pending:
    """Rows that wait for the writer's next transaction. Used by the writer's thread alone.

    Attributes:
        states: changes of the run's state, in order.
        gap: what the log will lack, for the event that says so.
    """

    def __init__(self, max_steps: int) -> None:
        self._steps: deque[StepRow] = deque()
        self._samples: deque[TelemetryRow | MemorySampleRow] = deque()
        self._kept: list[Row] = []
        self.states: list[StateChange] = []
        self._max_steps = max_steps
        self.gap = Gap()
        self.last_step = 0

    def __str__(self) -> str:
        others = len(self._kept) + len(self._samples) + len(self.states)
        return f"{self.gap.dropped_steps + len(self._steps):,} steps and {others:,} other rows"

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return self.gap.is_empty and not (self._steps or self._samples or self._kept or self.states)

    @property
    def steps(self) -> int:
        """How many steps wait."""
        return len(self._steps)

    def add(self, row: Row) -> None:
        """Take a row; of samples only the newest few thousand are kept."""
        if not isinstance(row, TelemetryRow | MemorySampleRow):
            self._kept.append(row)
            return
        if len(self._samples) >= _MOST_SAMPLES:
            self._samples.popleft()
            self.gap.dropped_samples += 1
        self._samples.append(row)

    def add_steps(self, steps: Sequence[StepRow]) -> None:
        """Take steps; only the newest `max_steps` are kept."""
        self._steps.extend(steps)
        self.last_step = steps[-1].step
        while len(self._steps) > self._max_steps:
            self.gap.last_dropped = self._steps.popleft().step
            self.gap.dropped_steps += 1

    def clear(self) -> None:
        """Drop everything: nothing will be written any more."""
        self.gap.dropped_steps += len(self._steps)
        self._steps.clear()
        self._samples.clear()
        self._kept.clear()
        self.states.clear()

    def write_to(self, appender: LogAppender, clock_ns: Callable[[], int], durable: bool) -> None:
        """Write everything. Raises sqlite3.Error when the log does not take it, MemoryError when memory ran
        short, and keeps what is not written. A row that no log can hold is left out and reported.
        """
        refusals = 0
        while True:
            steps = [self._steps[i] for i in range(min(len(self._steps), _MOST_AT_ONCE))]
            last = len(steps) == len(self._steps)
            rows: list[Row] = [*self._kept, *self._samples] if last else []
            if last and self.gap.is_worth_saying(now_ns := clock_ns()):
                rows.append(self.gap.event(now_ns, self.last_step))
            try:
                appender.append(steps, rows, self.states if last else (), durable and last)
            except ROW_ERRORS as error:
                refusals += 1
                if blame(error) is not Blame.ROW or refusals > _MOST_REFUSALS:
                    raise
                self._drop_unwritable(appender)
                continue
            for _ in steps:
                self._steps.popleft()
            if last:
                self._kept.clear()
                self._samples.clear()
                self.states.clear()
                self.gap = Gap()
                return

    def _drop_unwritable(self, appender: LogAppender) -> None:
        """Write the rows one by one and leave out those that cannot be bound or break a constraint."""
        steps, self._steps = self._steps, deque()
        while steps:
            step = steps.popleft()
            try:
                appender.append([step])
            except (*ROW_ERRORS, MemoryError) as error:
                if blame(error) is not Blame.ROW:
                    steps.appendleft(step)
                    self._steps = steps
                    raise
                self.gap.add_unwritable(f"step {step.step}: {reason(error)}")
        rows: list[Row] = [*self._kept, *self._samples]
        self._kept.clear()
        self._samples.clear()
        for index, row in enumerate(rows):
            try:
                appender.append(rows=[row])
            except (*ROW_ERRORS, MemoryError) as error:
                if blame(error) is not Blame.ROW:
                    for left in rows[index:]:
                        self.add(left)
                    raise
                self.gap.add_unwritable(f"{type(row).__name__}: {reason(error)}")
        states, self.states = self.states, []
        while states:
            try:
                appender.append(states=states[:1])
            except (*ROW_ERRORS, MemoryError) as error:
                if blame(error) is not Blame.ROW:
                    self.states = states
                    raise
                self.gap.add_unwritable(f"state {states[0].state}: {reason(error)}")
            states = states[1:]

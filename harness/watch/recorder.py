"""Rows of steps: the training thread records the minimum, the writer's thread does the rest.

The training thread appends to a plain deque, which the writer polls through `collect`; nothing is woken and
nothing waits. A step stays in the deque until its device times and its loss have arrived.
"""

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any

from harness.device.protocol import PhaseTimes, StepTicket
from harness.records.floats import encode_float
from harness.records.run import EventKind, EventRow, Phase, Severity, StepFlag, StepRow
from harness.watch.context import Marks
from harness.watch.memory import OWN_NS, MemoryColumns, MemoryWatch
from harness.watch.rank_waits import NO_WAITS, RankWaits, Waits
from harness.watch.readback import LossTicket
from harness.watch.reference import ReferenceWork
from harness.watch.timing import Times, phases_ns

# Steps in memory while the writer is behind; about 40 MB. Later ones are dropped and counted.
CAPACITY = 65_536

# As StepRow._make, without a call into Python for every step.
_new_row: Callable[[tuple[Any, ...]], StepRow] = partial(tuple.__new__, StepRow)

_Nanoseconds = int | None
_DeviceColumns = tuple[_Nanoseconds, _Nanoseconds, _Nanoseconds, _Nanoseconds, _Nanoseconds, _Nanoseconds]
_NO_DEVICE: _DeviceColumns = (None, None, None, None, None, None)

# Memory, settings version, flags.
LastColumns = tuple[MemoryColumns, int, int]
NO_COLUMNS: LastColumns = ((None,) * 9, 0, 0)
# Step, times, device times, loss, samples, tokens, waits for other ranks, the last columns.
PendingStep = tuple[
    int,
    Times,
    StepTicket | None,
    LossTicket | None,
    int,
    int | None,
    Waits,
    LastColumns,
]


class Recorder:
    """Receives steps (training thread) and returns finished rows (writer's thread).

    Attributes:
        pending: steps whose rows are not finished.
        rank_waits: measures the waits for other ranks; None in a run of one process.
    """

    def __init__(
        self,
        memory: MemoryWatch,
        marks: Marks,
        put_event: Callable[[EventRow], None],
        zero_ns: int,
        *,
        reference: ReferenceWork | None = None,
        has_device_clock: bool = False,
        capacity: int = CAPACITY,
    ) -> None:
        """`zero_ns` is the run's start on the clock of the steps' times; `reference` runs after some of
        them."""
        self._memory = memory
        self._reference = reference
        self._zero_ns = zero_ns
        self._has_device_clock = has_device_clock
        self._marks = marks
        self._put_event = put_event
        self._capacity = capacity
        self.pending: deque[PendingStep] = deque()
        self.rank_waits: RankWaits | None = None
        self._dropped = 0
        self._reported_dropped = 0
        self._newest: tuple[int, int] = (0, 0)
        self._loss_was_finite = True

    @property
    def columns(self) -> LastColumns:
        """The last columns of `pending`, those of the next step if nothing is done before it."""
        return self._memory.columns, self._marks.settings_version, self._marks.flags

    @property
    def is_behind(self) -> bool:
        """Return whether so many steps are pending that later ones may have to be dropped."""
        return len(self.pending) > self._capacity // 2

    def step_ended(
        self,
        step: int,
        times_ns: Times,
        ticket: StepTicket | None,
        loss: LossTicket | None,
        samples: int,
        tokens: int | None,
    ) -> None:
        """Record a step. Takes about a microsecond; never waits."""
        end_ns, reference = times_ns[-1], self._reference
        waits = NO_WAITS if self.rank_waits is None else self.rank_waits.take()
        step_ns = end_ns - times_ns[0]
        if end_ns + step_ns >= self._memory.due_ns or (reference is not None and end_ns >= reference.due_ns):
            self.measure(step, end_ns, step_ns)
        if len(self.pending) >= self._capacity:
            self._dropped += 1
            return
        # As `columns`, without a call.
        columns = self._memory.columns, self._marks.settings_version, self._marks.flags
        self.pending.append((step, times_ns, ticket, loss, samples, tokens, waits, columns))

    def measures_from_ns(self, step_ns: int) -> int:
        """Return the earliest end of a step of `step_ns` after which to call `measure`."""
        memory_ns = self._memory.due_ns - step_ns
        return memory_ns if self._reference is None else min(memory_ns, self._reference.due_ns)

    def measure(self, step: int, end_ns: int, step_ns: int) -> None:
        """Measure what is due at the end of `step`, which took `step_ns`: the speed of the machine, and the
        memory."""
        memory, reference = self._memory, self._reference
        # Short steps that are read take longer than others, and the work would take longer after them.
        is_ordinary = step_ns >= OWN_NS or not memory.is_sampled
        if reference is not None and end_ns >= reference.due_ns and is_ordinary:
            reference.step_ended(step, end_ns)
        if end_ns + step_ns >= memory.due_ns:
            memory.step_ended(end_ns, step_ns)

    def collect(self) -> list[StepRow]:
        """Return the complete rows, in order. Called from the writer's thread only.

        Raises RuntimeError if the device fails, and MemoryError if there is no memory for a row, each after
        all rows before were returned.
        """
        rows: list[StepRow] = []
        pending = self.pending
        try:
            while pending:
                ticket = pending[0][2]
                if ticket is not None and not ticket.ready():
                    break
                rows.append(self._row(pending[0]))
                pending.popleft()
        except (RuntimeError, MemoryError):
            if not rows:
                raise
        if rows:
            self._newest = (rows[-1].step, rows[-1].t_ns)
        if self._dropped != self._reported_dropped:
            self._report_drops()
        return rows

    def _row(self, done: PendingStep) -> StepRow:
        step, times_ns, ticket, loss_ticket, samples, tokens, waits, (memory, version, flags) = done
        loss = loss_ticket() if callable(loss_ticket) else loss_ticket
        loss_state: int | None = 0
        if ticket is None and self._has_device_clock:
            # The loss may not have arrived: reading it only frees its slot.
            loss, flags = None, flags | StepFlag.UNTIMED.value
        if loss is None or not isfinite(loss):
            loss, loss_state = encode_float(loss)
        t_ns = times_ns[-1] - self._zero_ns
        if loss_state is not None and bool(loss_state) is self._loss_was_finite:
            self._watch_loss(step, t_ns, loss_state)
        return _new_row(
            (
                step,
                t_ns,
                times_ns[-1] - times_ns[0],
                *phases_ns(times_ns),
                *(_NO_DEVICE if ticket is None else _device_columns(ticket.resolve())),
                loss,
                loss_state,
                samples,
                tokens,
                *memory,
                version,
                flags,
                *waits,
            )
        )

    def _watch_loss(self, step: int, t_ns: int, loss_state: int | None) -> None:
        """Report the first loss that is not finite, and the next one after finite losses."""
        self._loss_was_finite = not loss_state
        self._marks.not_finite_since = step if loss_state else None
        if self._loss_was_finite:
            return
        message = (
            f"The loss became {'NaN' if loss_state == 1 else 'infinite'} at step {step:,}. A lower "
            "learning rate, or bf16 instead of fp16, is the usual remedy."
        )
        label = "loss NaN" if loss_state == 1 else "loss inf"
        self._put_event(
            EventRow(t_ns, step, EventKind.NON_FINITE_LOSS, Severity.WARNING, label, message, "{}", None)
        )

    def _report_drops(self) -> None:
        dropped = self._dropped - self._reported_dropped
        self._reported_dropped += dropped
        step, t_ns = self._newest
        label = f"{dropped:,} steps not recorded"
        message = f"{dropped:,} steps were not recorded: the log's writer was behind. Training went on."
        detail = json.dumps({"dropped": dropped, "why": "writer behind"})
        self._put_event(EventRow(t_ns, step, EventKind.GAP, Severity.WARNING, label, message, detail, None))


def _device_columns(times: PhaseTimes | None) -> _DeviceColumns:
    """Step, copy, forward, backward, optimizer and gap, as the columns of StepRow."""
    if times is None:
        return _NO_DEVICE
    phases = times.phases_ns
    return (
        times.step_ns,
        phases.get(Phase.H2D),
        phases.get(Phase.FORWARD),
        phases.get(Phase.BACKWARD),
        phases.get(Phase.OPTIMIZER),
        times.gap_ns,
    )

"""Turns steps into rows: reads memory on the training thread, and everything slower on the writer's.

The training thread appends to a plain deque, which the writer polls through `collect`; nothing is woken and
nothing waits. A step whose device times or loss are still on their way stays in the deque until they are in.
"""

import json
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from harness.device.protocol import Device, PhaseTimes
from harness.records import (
    EventKind,
    EventRow,
    MemoryReading,
    Phase,
    Severity,
    StepFlag,
    StepRow,
    encode_float,
)
from harness.train.control import Marks
from harness.train.readback import LossTicket
from harness.train.timing import StepTiming

CAPACITY = 65_536
"""Steps held while the writer is behind; about 40 MB. What comes after is dropped and counted."""


_Nanoseconds = int | None
_DeviceColumns = tuple[_Nanoseconds, _Nanoseconds, _Nanoseconds, _Nanoseconds, _Nanoseconds, _Nanoseconds]


class _Pending(NamedTuple):
    step: int
    timing: StepTiming
    loss: LossTicket | None
    samples: int
    tokens: int | None
    memory: MemoryReading
    rss_bytes: int | None
    settings_version: int
    flags: int


class Recorder:
    """Listens to steps (training thread) and hands out finished rows (writer's thread).

    Attributes:
        last_step, last_end_ns: the newest step, and when it ended; for the watch on stalls.
    """

    def __init__(
        self,
        device: Device,
        marks: Marks,
        put_event: Callable[[EventRow], None],
        capacity: int = CAPACITY,
    ) -> None:
        self._read_memory = device.read_memory
        self._rss_bytes = device.rss_bytes
        self._marks = marks
        self._put_event = put_event
        self._capacity = capacity
        self._pending: deque[_Pending] = deque()
        self._dropped = 0
        self._reported_dropped = 0
        self._loss_was_finite = True
        self.last_step = 0
        self.last_end_ns = 0

    def step_ended(
        self, step: int, timing: StepTiming, loss: LossTicket | None, samples: int, tokens: int | None
    ) -> None:
        """Take a step down. Costs a few microseconds; never waits."""
        memory = self._read_memory()
        self.last_step = step
        self.last_end_ns = timing.end_ns
        if len(self._pending) >= self._capacity:
            self._dropped += 1
            return
        marks = self._marks
        self._pending.append(
            _Pending(
                step,
                timing,
                loss,
                samples,
                tokens,
                memory,
                self._rss_bytes(),
                marks.settings_version,
                marks.flags,
            )
        )

    def collect(self) -> list[StepRow]:
        """The rows that are complete by now, in order. Called from the writer's thread only."""
        rows: list[StepRow] = []
        pending = self._pending
        while pending:
            ticket = pending[0].timing.ticket
            if ticket is not None and not ticket.ready():
                break
            rows.append(self._row(pending.popleft()))
        self._report_drops()
        return rows

    def _row(self, done: _Pending) -> StepRow:
        timing = done.timing
        times = None if timing.ticket is None else timing.ticket.resolve()
        loss, loss_state = encode_float(None if done.loss is None else done.loss.read())
        self._watch_loss(done, loss_state)
        return StepRow(
            done.step,
            timing.end_ns,
            timing.step_ns,
            *timing.phases_ns,
            *_device_columns(times),
            loss,
            loss_state,
            done.samples,
            done.tokens,
            *done.memory,
            done.rss_bytes,
            done.settings_version,
            done.flags | (StepFlag.UNTIMED if timing.untimed else 0),
        )

    def _watch_loss(self, done: _Pending, loss_state: int | None) -> None:
        finite = not loss_state
        if not finite and self._loss_was_finite:
            message = (
                f"The loss became {'NaN' if loss_state == 1 else 'infinite'} at step {done.step:,}. A lower "
                "learning rate, or bf16 instead of fp16, is the usual remedy."
            )
            self._put_event(
                EventRow(
                    done.timing.end_ns,
                    done.step,
                    EventKind.NON_FINITE_LOSS,
                    Severity.WARNING,
                    "loss NaN" if loss_state == 1 else "loss inf",
                    message,
                    "{}",
                    None,
                )
            )
        self._loss_was_finite = finite

    def _report_drops(self) -> None:
        dropped = self._dropped - self._reported_dropped
        if not dropped or len(self._pending) >= self._capacity:
            return
        self._reported_dropped += dropped
        self._put_event(
            EventRow(
                self.last_end_ns,
                self.last_step,
                EventKind.GAP,
                Severity.WARNING,
                f"{dropped:,} steps not recorded",
                f"{dropped:,} steps were not recorded: the log's writer was behind. Training went on.",
                json.dumps({"dropped": dropped, "why": "writer behind"}),
                None,
            )
        )


def _device_columns(times: PhaseTimes | None) -> _DeviceColumns:
    """Step, copy, forward, backward, optimizer and gap, as the columns of StepRow."""
    if times is None:
        return None, None, None, None, None, None
    phases = times.phases_ns
    return (
        times.step_ns,
        phases.get(Phase.H2D),
        phases.get(Phase.FORWARD),
        phases.get(Phase.BACKWARD),
        phases.get(Phase.OPTIMIZER),
        times.gap_ns,
    )

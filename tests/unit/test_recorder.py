"""Steps become rows, in order, once everything about them is known."""

import json
import math
from itertools import pairwise

import pytest

from harness.device.event_clock import EventClock
from harness.device.protocol import StepTicket
from harness.device.testing.device import FakeQueue
from harness.records.floats import decode_float
from harness.records.reference import ReferenceRow
from harness.records.run import EventKind, EventRow, Phase, StepFlag
from harness.watch.context import Marks
from harness.watch.memory import OWN_NS, SHARED_NS, MemoryWatch
from harness.watch.readback import LossTicket
from harness.watch.recorder import Recorder
from harness.watch.reference import PERIOD_NS, ReferenceWork
from tests.train_factories import a_device, some_times


class Bench:
    """A recorder with its events and marks at hand."""

    def __init__(self, capacity: int = 100, has_device_clock: bool = False) -> None:
        self.events: list[EventRow] = []
        self.marks = Marks(settings_version=3, flags=0)
        self.recorder = Recorder(
            MemoryWatch(a_device(), 0),
            self.marks,
            self.events.append,
            zero_ns=500,
            has_device_clock=has_device_clock,
            capacity=capacity,
        )
        self._step = 0

    def step(self, loss: LossTicket | None = lambda: 0.5, ticket: StepTicket | None = None) -> None:
        self._step += 1
        self.recorder.step_ended(self._step, some_times(500 + self._step * 1_000), ticket, loss, 8, None)


def test_a_row_carries_everything_known_about_its_step() -> None:
    bench = Bench()
    bench.marks.flags = StepFlag.TRANSITION
    bench.step()
    (row,) = bench.recorder.collect()
    assert (row.step, row.t_ns, row.step_ns) == (1, 1_000, 1_000)
    assert row[3:8] == (1, 2, 3, 4, 5)
    assert (row.loss, row.loss_state, row.samples, row.tokens) == (0.5, 0, 8, None)
    assert (row.allocated_bytes, row.rss_bytes) == (0, None)
    assert (row.settings_version, row.flags) == (3, StepFlag.TRANSITION)
    assert row.device_step_ns is None


def test_marks_are_those_in_effect_when_the_step_ended() -> None:
    bench = Bench()
    bench.step()
    bench.marks.settings_version = 4
    bench.step()
    assert [row.settings_version for row in bench.recorder.collect()] == [3, 4]


def test_a_row_is_handed_out_once() -> None:
    bench = Bench()
    bench.step()
    assert len(bench.recorder.collect()) == 1
    assert bench.recorder.collect() == []


def a_ticket(clock: EventClock) -> StepTicket:
    clock.begin()
    for phase in (Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        clock.lap(phase)
    ticket = clock.end()
    assert ticket is not None
    return ticket


def test_a_step_waits_for_its_device_times_and_so_do_those_behind_it() -> None:
    bench, queue = Bench(), FakeQueue(mark_ns=10, lag_marks=7)
    clock = EventClock(queue.event)
    bench.step(ticket=a_ticket(clock))
    bench.step(ticket=a_ticket(clock))
    assert bench.recorder.collect() == []
    bench.step(ticket=a_ticket(clock))
    assert [row.step for row in bench.recorder.collect()] == [1]
    queue.finish()
    rows = bench.recorder.collect()
    assert [row.step for row in rows] == [2, 3]
    assert rows[0][8:14] == (40, 10, 10, 10, 10, 10)


def test_the_loss_is_read_only_when_the_device_is_done() -> None:
    bench, queue, reads = Bench(), FakeQueue(lag_marks=100), list[int]()

    def loss() -> float:
        reads.append(1)
        return 0.25

    bench.step(loss=loss, ticket=a_ticket(EventClock(queue.event)))
    bench.recorder.collect()
    assert not reads
    queue.finish()
    assert bench.recorder.collect()[0].loss == 0.25


def test_a_step_that_found_the_ring_full_is_flagged() -> None:
    bench = Bench(has_device_clock=True)
    bench.step()
    assert bench.recorder.collect()[0].flags == StepFlag.UNTIMED


def test_the_loss_of_an_untimed_step_is_missing_and_its_slot_is_freed() -> None:
    bench, reads = Bench(has_device_clock=True), list[int]()

    def loss_of_an_earlier_step() -> float:
        reads.append(1)
        return 123.0

    bench.step(loss=loss_of_an_earlier_step)
    row = bench.recorder.collect()[0]
    assert (row.loss, row.loss_state) == (None, None)
    assert reads == [1]


def test_a_missing_loss_is_no_recovery_from_nan() -> None:
    bench = Bench()
    bench.step(loss=lambda: math.nan)
    bench.step(loss=None)
    bench.step(loss=lambda: math.nan)
    bench.recorder.collect()
    assert [event.step for event in bench.events] == [1]


def test_a_loss_that_found_no_slot_is_missing_not_zero() -> None:
    bench = Bench()
    bench.step(loss=None)
    row = bench.recorder.collect()[0]
    assert (row.loss, row.loss_state) == (None, None)


@pytest.mark.parametrize(("loss", "label"), [(math.nan, "loss NaN"), (-math.inf, "loss inf")])
def test_a_loss_that_is_not_finite_is_kept_and_reported_once(loss: float, label: str) -> None:
    bench = Bench()
    for value in (0.5, loss, loss, 0.5):
        bench.step(loss=value)
    rows = bench.recorder.collect()
    assert str(decode_float(rows[1].loss, rows[1].loss_state)) == str(loss)
    assert [(event.kind, event.step, event.label) for event in bench.events] == [
        (EventKind.NON_FINITE_LOSS, 2, label)
    ]


def test_a_loss_that_breaks_again_is_reported_again() -> None:
    bench = Bench()
    for value in (math.nan, 0.5, math.inf):
        bench.step(loss=value)
    bench.recorder.collect()
    assert [event.step for event in bench.events] == [1, 3]


def test_steps_beyond_the_capacity_are_dropped_and_counted() -> None:
    bench = Bench(capacity=2)
    for _ in range(5):
        bench.step()
    assert [row.step for row in bench.recorder.collect()] == [1, 2]
    (gap,) = bench.events
    assert gap.kind == EventKind.GAP
    assert json.loads(gap.detail)["dropped"] == 3
    bench.step()
    assert [row.step for row in bench.recorder.collect()] == [6]
    assert len(bench.events) == 1


class BrokenTicket:
    def ready(self) -> bool:
        raise RuntimeError("an illegal memory access was encountered")

    def resolve(self) -> None:
        return None


def test_rows_known_before_the_device_broke_are_handed_out_first() -> None:
    bench = Bench()
    bench.step()
    bench.step(ticket=BrokenTicket())
    assert [row.step for row in bench.recorder.collect()] == [1]
    with pytest.raises(RuntimeError, match="illegal memory access"):
        bench.recorder.collect()


def test_steps_before_a_loss_that_cannot_be_read_are_handed_out() -> None:
    bench = Bench()

    def gone() -> float:
        raise RuntimeError("the device is gone")

    bench.step()
    bench.step(loss=gone)
    assert [row.step for row in bench.recorder.collect()] == [1]
    with pytest.raises(RuntimeError):
        bench.recorder.collect()


def test_steps_wait_for_the_next_poll_while_memory_is_short() -> None:
    bench, is_short = Bench(), [True]

    def loss() -> float:
        if is_short.pop():
            raise MemoryError
        return 0.5

    bench.step()
    bench.step(loss)
    assert [row.step for row in bench.recorder.collect()] == [1]
    is_short += [False]
    assert [row.step for row in bench.recorder.collect()] == [2]


def reference_of(step_ns: int, steps: int) -> tuple[list[ReferenceRow], list[int]]:
    """Record so many steps; return the reference work beside them, and the numbers of the steps
    in which memory is read."""
    work: list[ReferenceRow] = []
    memory = MemoryWatch(a_device(), cpu_ns=lambda: 0)
    recorder = Recorder(memory, Marks(), lambda event: None, zero_ns=0, reference=ReferenceWork(work.append))
    read = []
    for step in range(1, steps + 1):
        if memory.is_sampled:
            read.append(step)
        recorder.step_ended(step, some_times(step * step_ns, step_ns), None, None, 8, None)
    assert len(recorder.collect()) == steps
    return work, read


def test_the_reference_work_runs_after_ordinary_steps_at_most_25_times_per_second() -> None:
    step_ns, steps = 1_000_000, 1_000
    work, read = reference_of(step_ns, steps)
    assert all(row.took_ns > 0 for row in work)
    assert not {row.step for row in work} & set(read)
    assert len(read) == pytest.approx(steps * step_ns / SHARED_NS, abs=2)
    assert len(work) == pytest.approx(steps * step_ns / PERIOD_NS, abs=2)
    assert all(later.step - row.step >= PERIOD_NS / step_ns for row, later in pairwise(work))


def test_where_every_step_is_read_the_reference_work_runs_all_the_same() -> None:
    work, read = reference_of(OWN_NS, 10)
    assert read == list(range(1, 11))
    assert [row.step for row in work] == [1, 3, 5, 7, 9]

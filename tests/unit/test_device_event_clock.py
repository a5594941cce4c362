import pytest

from harness.device.current_stream import CurrentStream
from harness.device.event_clock import EventClock, EventTicket
from harness.device.protocol import PhaseTimes
from harness.device.testing.device import FakeQueue
from harness.records.run import Phase

MS = 1_000_000


def take_step(clock: EventClock, queue: FakeQueue) -> None:
    """Mark a step of forward 3 ms, backward 5 ms, optimizer 2 ms."""
    clock.begin()
    for phase, duration_ms in ((Phase.FORWARD, 3), (Phase.BACKWARD, 5), (Phase.OPTIMIZER, 2)):
        queue.work(duration_ms * MS)
        clock.lap(phase)


def times_of(ticket: EventTicket | None) -> PhaseTimes:
    """Return the times of a step that is timed."""
    assert ticket is not None
    times = ticket.resolve()
    assert times is not None
    return times


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue(mark_ns=0)


def test_phases_and_step_are_told_in_nanoseconds(queue: FakeQueue) -> None:
    clock = EventClock(queue.event)
    take_step(clock, queue)
    ticket = clock.end()
    assert ticket is not None
    times = times_of(ticket)
    assert times.phases_ns == {Phase.FORWARD: 3 * MS, Phase.BACKWARD: 5 * MS, Phase.OPTIMIZER: 2 * MS}
    assert times.step_ns == 10 * MS
    assert times.gap_ns is None


def test_the_gap_lies_between_the_last_end_and_this_start(queue: FakeQueue) -> None:
    clock = EventClock(queue.event)
    take_step(clock, queue)
    first = clock.end()
    queue.work(7 * MS)
    take_step(clock, queue)
    second = clock.end()
    assert first is not None
    assert second is not None
    assert times_of(second).gap_ns == 7 * MS
    assert times_of(first).step_ns == 10 * MS


def test_laps_of_one_phase_add_up(queue: FakeQueue) -> None:
    clock = EventClock(queue.event)
    clock.begin()
    for duration_ms in (1, 2):
        queue.work(duration_ms * MS)
        clock.lap(Phase.FORWARD)
        queue.work(10 * MS)
        clock.lap(Phase.BACKWARD)
    ticket = clock.end()
    assert ticket is not None
    assert times_of(ticket).phases_ns == {Phase.FORWARD: 3 * MS, Phase.BACKWARD: 20 * MS}


class StreamEvent:
    """An event that is reached when its stream is done."""

    def __init__(self, done: set[str]) -> None:
        self._done = done
        self.stream = ""

    def record(self, stream: str) -> None:
        self.stream = stream

    def query(self) -> bool:
        return self.stream in self._done

    def elapsed_time(self, end_event: "StreamEvent", /) -> float:
        assert self.query()
        assert end_event.query()
        return 1.0


def test_each_mark_is_recorded_on_the_current_stream_and_a_ticket_waits_for_all_of_them() -> None:
    made, done, current = list[StreamEvent](), {"side"}, "side"

    def make_event() -> StreamEvent:
        made.append(StreamEvent(done))
        return made[-1]

    clock = EventClock(make_event, capacity=8, current_stream=lambda: current)
    clock.begin()
    current = "main"
    clock.lap(Phase.FORWARD)
    current = "side"
    clock.lap(Phase.OPTIMIZER)
    ticket = clock.end()
    assert ticket is not None
    assert sorted(event.stream for event in made) == [""] * 5 + ["main", "side", "side"]
    assert not ticket.ready()
    done.add("main")
    assert ticket.ready()
    assert times_of(ticket).step_ns == MS


def test_a_stream_is_opened_once_for_the_marks_on_it() -> None:
    opened, ids = list[tuple[int, int]](), [(0, 0), (0, 0), (7, 0), (7, 0), (0, 0)]

    def open_stream() -> str:
        opened.append(ids[0])
        return f"stream {ids[0][0]}"

    stream = CurrentStream(lambda: ids[0], open_stream)
    found = []
    while ids:
        found.append(stream())
        del ids[0]
    assert found == ["stream 0", "stream 0", "stream 7", "stream 7", "stream 0"]
    assert opened == [(0, 0), (7, 0), (0, 0)]


def test_a_step_that_ends_late_is_ready_behind_what_was_issued_after_its_last_lap() -> None:
    queue = FakeQueue(lag_marks=1)
    clock = EventClock(queue.event, capacity=9)
    for _ in range(10):
        take_step(clock, queue)
        queue.work(4 * MS)  # Such as the copy of the loss.
        ticket = clock.end(is_late=True)
        assert ticket is not None
        assert not ticket.ready()
        queue.event().record()
        assert ticket.ready()
        assert times_of(ticket).step_ns == 13 * MS  # With three marks of a millisecond.


def test_a_ticket_is_ready_when_the_device_has_passed_its_last_mark() -> None:
    queue = FakeQueue(lag_marks=4)
    clock = EventClock(queue.event)
    take_step(clock, queue)
    ticket = clock.end()
    assert ticket is not None
    assert not ticket.ready()
    take_step(clock, queue)
    assert ticket.ready()


def test_a_ticket_answers_again_after_its_events_went_to_another_step(queue: FakeQueue) -> None:
    clock = EventClock(queue.event)
    take_step(clock, queue)
    ticket = clock.end()
    assert ticket is not None
    times = ticket.resolve()
    take_step(clock, queue)
    assert ticket.ready()
    assert ticket.resolve() == times


def test_a_full_ring_leaves_the_step_untimed(queue: FakeQueue) -> None:
    clock = EventClock(queue.event, capacity=6)
    take_step(clock, queue)
    first = clock.end()
    take_step(clock, queue)
    assert clock.end() is None
    assert first is not None
    assert times_of(first).step_ns == 10 * MS


def test_resolving_frees_the_ring_for_steps_without_end(queue: FakeQueue) -> None:
    clock = EventClock(queue.event, capacity=9)
    for _ in range(200):
        take_step(clock, queue)
        ticket = clock.end()
        assert ticket is not None
        ticket.resolve()


def test_untimed_steps_lose_no_events(queue: FakeQueue) -> None:
    clock = EventClock(queue.event, capacity=9)
    for _ in range(50):
        take_step(clock, queue)
        first = clock.end()
        take_step(clock, queue)
        second = clock.end()
        take_step(clock, queue)
        assert clock.end() is None
        assert first is not None
        assert second is not None
        first.resolve()
        second.resolve()


def test_after_an_untimed_step_the_gap_is_unknown(queue: FakeQueue) -> None:
    clock = EventClock(queue.event, capacity=6)
    take_step(clock, queue)
    first = clock.end()
    take_step(clock, queue)
    assert clock.end() is None
    assert first is not None
    first.resolve()
    take_step(clock, queue)
    third = clock.end()
    assert third is not None
    assert times_of(third).gap_ns is None


def test_a_step_that_raised_before_its_end_is_dropped(queue: FakeQueue) -> None:
    clock = EventClock(queue.event, capacity=6)
    for _ in range(20):
        clock.begin()
        clock.lap(Phase.FORWARD)
    take_step(clock, queue)
    ticket = clock.end()
    assert ticket is not None
    assert times_of(ticket).step_ns == 10 * MS


def test_a_step_without_laps_still_has_a_length(queue: FakeQueue) -> None:
    clock = EventClock(queue.event)
    clock.begin()
    queue.work(4 * MS)
    ticket = clock.end()
    assert ticket is not None
    assert times_of(ticket).step_ns == 4 * MS
    assert times_of(ticket).phases_ns == {}


def test_a_step_with_work_of_no_step_has_no_times_but_an_end(queue: FakeQueue) -> None:
    queue.lag_marks = 1
    clock = EventClock(queue.event, capacity=10)
    for _ in range(20):
        take_step(clock, queue)
        clock.leave_untimed()
        clock.lap(Phase.OPTIMIZER)
        ticket = clock.end()
        take_step(clock, queue)
        later = clock.end()
        assert ticket is not None
        assert ticket.ready()
        assert [ticket.resolve(), ticket.resolve()] == [None, None]
        assert later is not None
        assert not later.ready()
        queue.finish()
        assert times_of(later) == times_of(later)
        assert (times_of(later).step_ns, times_of(later).gap_ns) == (10 * MS, 0)


def test_work_of_no_step_between_two_steps_is_no_gap(queue: FakeQueue) -> None:
    clock = EventClock(queue.event)
    take_step(clock, queue)
    clock.end()
    queue.work(50 * MS)
    clock.leave_untimed()
    take_step(clock, queue)
    assert (times := times_of(clock.end())).gap_ns is None
    assert times.step_ns == 10 * MS

"""The stopwatch: laps add up, steps are chained, the device's clock starts with the batch."""

from harness.device.event_clock import EventClock
from harness.device.fakes import FakeDevice, FakeQueue
from harness.records import Phase
from harness.train.memory import EVERY_NS, MemoryWatch
from harness.train.timing import StepTimer, phases_ns
from tests.train_factories import Clock


def lap_all(timer: StepTimer, clock: Clock, *durations_ns: int) -> None:
    for phase, duration_ns in zip(Phase, durations_ns, strict=True):
        clock.now_ns += duration_ns
        timer.lap(phase)


def test_each_phase_has_its_time_in_the_order_of_phases() -> None:
    clock = Clock()
    timer = StepTimer(clock, 0)
    timer.begin()
    lap_all(timer, clock, 10, 20, 30, 40, 50)
    assert phases_ns(timer.end().marks_ns) == (10, 20, 30, 40, 50)


def test_laps_of_one_phase_add_up_over_micro_batches() -> None:
    clock = Clock()
    timer = StepTimer(clock, 0)
    timer.begin()
    for duration_ns in (10, 1):
        for phase in (Phase.DATA_WAIT, Phase.H2D, Phase.FORWARD, Phase.BACKWARD):
            clock.now_ns += duration_ns
            timer.lap(phase)
    clock.now_ns += 5
    timer.lap(Phase.OPTIMIZER)
    assert phases_ns(timer.end().marks_ns) == (11, 11, 11, 11, 5)


def test_a_step_forgets_the_laps_of_the_one_before() -> None:
    clock = Clock()
    timer = StepTimer(clock, 0)
    for _ in range(2):
        timer.begin()
        lap_all(timer, clock, 1, 1, 1, 1, 1)
        timing = timer.end()
    assert phases_ns(timing.marks_ns) == (1, 1, 1, 1, 1)


def test_steps_are_chained_so_that_they_add_up_to_wall_time() -> None:
    clock = Clock()
    clock.now_ns = 1_000
    timer = StepTimer(clock, 1_000)
    total_ns = 0
    for between_ns in (0, 7, 9):
        clock.now_ns += between_ns
        timer.begin()
        lap_all(timer, clock, 1, 2, 3, 4, 5)
        timing = timer.end()
        total_ns += timing.step_ns
    assert timing.end_ns == total_ns == clock.now_ns - 1_000
    assert timing.step_ns == 9 + 15


def test_a_restart_leaves_a_pause_out_of_the_next_step() -> None:
    clock = Clock()
    timer = StepTimer(clock, 0)
    timer.begin()
    timer.end()
    clock.now_ns += 1_000_000
    timer.restart()
    timer.begin()
    lap_all(timer, clock, 1, 1, 1, 1, 1)
    assert timer.end().step_ns == 5


class PeakDevice(FakeDevice):
    """Counts how often its peak is looked for."""

    looks = 0

    def note_peak(self) -> None:
        self.looks += 1


def test_the_peak_is_looked_for_where_forward_and_backward_end() -> None:
    clock, device, looks = Clock(), PeakDevice(), []
    timer = StepTimer(clock, 0, None, MemoryWatch(device))
    timer.begin()
    for phase in Phase:
        timer.lap(phase)
        looks.append(device.looks)
    assert looks == [0, 0, 1, 2, 2]


def test_the_peak_is_not_looked_for_in_a_step_that_shares_a_reading() -> None:
    clock, device = Clock(), PeakDevice()
    memory = MemoryWatch(device)
    memory.read(EVERY_NS, 1)
    timer = StepTimer(clock, 0, None, memory)
    timer.begin()
    lap_all(timer, clock, 1, 1, 1, 1, 1)
    assert device.looks == 0


def test_without_a_device_clock_a_step_has_no_ticket_and_is_not_called_untimed() -> None:
    timer = StepTimer(Clock(), 0)
    timer.begin()
    timing = timer.end()
    assert timing.ticket is None
    assert not timing.untimed


def a_timed_step(timer: StepTimer, queue: FakeQueue, wait_ns: int = 0) -> None:
    timer.begin()
    queue.work(wait_ns)
    for phase in Phase:
        timer.lap(phase)


def test_the_wait_for_a_batch_is_the_devices_gap_and_no_phase() -> None:
    queue = FakeQueue(mark_ns=1_000_000)
    timer = StepTimer(Clock(), 0, EventClock(queue.event))
    a_timed_step(timer, queue)
    timer.end()
    a_timed_step(timer, queue, wait_ns=7_000_000)
    ticket = timer.end().ticket
    assert ticket is not None
    times = ticket.resolve()
    assert times is not None
    assert times.gap_ns == 8_000_000
    assert times.step_ns == 4_000_000
    assert set(times.phases_ns) == set(Phase) - {Phase.DATA_WAIT}


def test_later_micro_batches_wait_within_the_step() -> None:
    queue = FakeQueue(mark_ns=1_000_000)
    timer = StepTimer(Clock(), 0, EventClock(queue.event))
    timer.begin()
    for _ in range(2):
        for phase in (Phase.DATA_WAIT, Phase.H2D, Phase.FORWARD, Phase.BACKWARD):
            timer.lap(phase)
    timer.lap(Phase.OPTIMIZER)
    ticket = timer.end().ticket
    assert ticket is not None
    times = ticket.resolve()
    assert times is not None
    assert times.phases_ns[Phase.DATA_WAIT] == 1_000_000
    assert times.phases_ns[Phase.FORWARD] == 2_000_000


def test_a_pause_is_no_gap() -> None:
    queue = FakeQueue(mark_ns=1_000_000)
    timer = StepTimer(Clock(), 0, EventClock(queue.event))
    a_timed_step(timer, queue)
    timer.end()
    timer.restart()
    a_timed_step(timer, queue, wait_ns=10**12)
    ticket = timer.end().ticket
    assert ticket is not None
    times = ticket.resolve()
    assert times is not None
    assert times.gap_ns is None


def test_a_full_ring_of_events_leaves_the_step_untimed() -> None:
    timer = StepTimer(Clock(), 0, EventClock(FakeQueue().event, capacity=2))
    a_timed_step(timer, FakeQueue())
    timing = timer.end()
    assert timing.ticket is None
    assert timing.untimed

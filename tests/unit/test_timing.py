"""The stopwatch: phases add up, steps are chained, the device's clock starts with the batch."""

from harness.device.event_clock import EventClock
from harness.device.protocol import PhaseTimes, StepTicket
from harness.device.testing.device import FakeDevice, FakeQueue
from harness.records.run import Phase
from harness.watch.memory import SHARED_NS, MemoryWatch
from harness.watch.timing import StepTimer, Times, phases_ns
from tests.train_factories import Clock

MICRO_BATCH = (Phase.DATA_WAIT, Phase.H2D, Phase.FORWARD, Phase.BACKWARD)


class Step:
    """A step that notes its times as the training loop does."""

    def __init__(self, timer: StepTimer) -> None:
        self._timer = timer
        self._times_ns: Times = (timer.end_ns, timer.now())

    def end(self, phase: Phase) -> None:
        self._times_ns = (*self._times_ns, self._timer.now())
        if self._timer.lap is not None:
            self._timer.lap(phase)

    def over(self) -> tuple[Times, StepTicket | None]:
        ticket = None if self._timer.end_device is None else self._timer.end_device()
        self._timer.end_ns = self._timer.now()
        return (*self._times_ns, self._timer.end_ns), ticket


def take_step(timer: StepTimer, clock: Clock, *durations_ns: int) -> Times:
    step = Step(timer)
    for phase, duration_ns in zip(Phase, durations_ns, strict=True):
        clock.now_ns += duration_ns
        step.end(phase)
    return step.over()[0]


def test_each_phase_has_its_time_in_the_order_of_phases() -> None:
    clock = Clock()
    times_ns = take_step(StepTimer(clock), clock, 10, 20, 30, 40, 50)
    assert list(phases_ns(times_ns)) == [10, 20, 30, 40, 50]


def test_phases_measured_each_on_its_own_leave_what_lies_between_them_to_the_residual() -> None:
    assert list(phases_ns((0, 1, 11, 13, 20, 43, 83, 90, 140))) == [10, 0, 30, 40, 50]


def test_the_times_of_micro_batches_add_up() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    step = Step(timer)
    for duration_ns in (10, 1, 100):
        for number, phase in enumerate(MICRO_BATCH, 1):
            clock.now_ns += duration_ns * number
            step.end(phase)
    clock.now_ns += 5
    step.end(Phase.OPTIMIZER)
    clock.now_ns += 1_000
    assert list(phases_ns(step.over()[0])) == [111, 222, 333, 444, 5]


def test_a_step_forgets_the_one_before() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    take_step(timer, clock, 9, 9, 9, 9, 9)
    assert list(phases_ns(take_step(timer, clock, 1, 1, 1, 1, 1))) == [1, 1, 1, 1, 1]


def test_steps_are_chained_so_that_they_add_up_to_wall_time() -> None:
    clock = Clock()
    clock.now_ns = 1_000
    timer = StepTimer(clock)
    lengths_ns = []
    for between_ns in (0, 7, 9):
        clock.now_ns += between_ns
        times_ns = take_step(timer, clock, 1, 2, 3, 4, 5)
        lengths_ns.append(times_ns[-1] - times_ns[0])
    assert lengths_ns == [15, 22, 24]
    assert sum(lengths_ns) == clock.now_ns - 1_000


def test_a_restart_leaves_a_pause_out_of_the_next_step() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    take_step(timer, clock, 1, 1, 1, 1, 1)
    clock.now_ns += 1_000_000
    timer.restart()
    times_ns = take_step(timer, clock, 1, 1, 1, 1, 1)
    assert times_ns[-1] - times_ns[0] == 5


class PeakDevice(FakeDevice):
    """Counts how often its peak is looked for."""

    peak_reads = 0

    def note_peak(self) -> None:
        self.peak_reads += 1


def test_the_peak_is_looked_for_where_forward_and_backward_end() -> None:
    device, peak_reads = PeakDevice(), []
    timer = StepTimer(Clock(), None, MemoryWatch(device))
    step = Step(timer)
    for phase in Phase:
        step.end(phase)
        peak_reads.append(device.peak_reads)
    assert peak_reads == [0, 0, 1, 2, 2]


def test_the_peak_is_not_looked_for_in_a_step_that_shares_a_reading() -> None:
    clock, device = Clock(), PeakDevice()
    memory = MemoryWatch(device)
    timer = StepTimer(clock, None, memory)
    memory.step_ended(SHARED_NS, 1)
    take_step(timer, clock, 1, 1, 1, 1, 1)
    assert device.peak_reads == 0
    memory.step_ended(2 * SHARED_NS - 1, 1)
    take_step(timer, clock, 1, 1, 1, 1, 1)
    assert device.peak_reads == 2


def test_without_a_device_clock_a_step_has_no_ticket() -> None:
    timer = StepTimer(Clock())
    step = Step(timer)
    assert step.over()[1] is None


def a_device_step(timer: StepTimer, queue: FakeQueue, wait_ns: int = 0) -> StepTicket | None:
    step = Step(timer)
    queue.work(wait_ns)
    for phase in Phase:
        step.end(phase)
    return step.over()[1]


def resolved(ticket: StepTicket | None) -> PhaseTimes:
    assert ticket is not None
    times = ticket.resolve()
    assert times is not None
    return times


def test_the_wait_for_a_batch_is_the_devices_gap_and_no_phase() -> None:
    queue = FakeQueue(mark_ns=1_000_000)
    timer = StepTimer(Clock(), EventClock(queue.event))
    a_device_step(timer, queue)
    times = resolved(a_device_step(timer, queue, wait_ns=7_000_000))
    assert times.gap_ns == 8_000_000
    assert times.step_ns == 4_000_000
    assert set(times.phases_ns) == set(Phase) - {Phase.DATA_WAIT}


def test_later_micro_batches_wait_within_the_step() -> None:
    timer = StepTimer(Clock(), EventClock(FakeQueue(mark_ns=1_000_000).event))
    step = Step(timer)
    for _ in range(2):
        for phase in MICRO_BATCH:
            step.end(phase)
    step.end(Phase.OPTIMIZER)
    times = resolved(step.over()[1])
    assert times.phases_ns[Phase.DATA_WAIT] == 1_000_000
    assert times.phases_ns[Phase.FORWARD] == 2_000_000


def test_the_cpus_clock_runs_beside_the_devices() -> None:
    clock = Clock()
    timer = StepTimer(clock, EventClock(FakeQueue().event))
    assert list(phases_ns(take_step(timer, clock, 5, 4, 3, 2, 1))) == [5, 4, 3, 2, 1]


def test_a_pause_is_no_gap() -> None:
    queue = FakeQueue(mark_ns=1_000_000)
    timer = StepTimer(Clock(), EventClock(queue.event))
    a_device_step(timer, queue)
    timer.restart()
    assert resolved(a_device_step(timer, queue, wait_ns=10**12)).gap_ns is None


def test_a_full_ring_of_events_leaves_the_step_without_a_ticket() -> None:
    timer = StepTimer(Clock(), EventClock(FakeQueue().event, capacity=2))
    assert a_device_step(timer, FakeQueue()) is None

"""A clock that times few steps, for devices whose events cannot be read without waiting (Apple GPUs)."""

from collections.abc import Callable

from harness.device.event_clock import EventClock, TimedEvent
from harness.device.protocol import PhaseTimes, StepTicket
from harness.records.run import Phase


class EndTicket:
    """An untimed step, with one event at its end."""

    __slots__ = ("_event", "_free")

    def __init__(self, event: TimedEvent, free: list[TimedEvent]) -> None:
        self._event: TimedEvent | None = event
        self._free = free

    def ready(self) -> bool:
        """Return whether the device has finished the step. Never waits."""
        return self._event is None or self._event.query()

    def resolve(self) -> PhaseTimes | None:
        """Return None, and return the event to the pool."""
        event, self._event = self._event, None
        if event is not None:
            self._free.append(event)
        return None


class SparseClock:
    """Implements `harness.device.protocol.DeviceClock`: two consecutive steps are timed every `every_ns`, the
    first for the gap of the second; each other step has one event at its end."""

    def __init__(
        self,
        make_event: Callable[[], TimedEvent],
        clock_ns: Callable[[], int],
        note_lap: Callable[[], None],
        every_ns: int,
        capacity: int,
    ) -> None:
        """`note_lap` is called at the end of each phase. Up to `capacity` untimed steps may be unfinished,
        and the two timed steps share `capacity` events."""
        self._clock_ns = clock_ns
        self._note_lap = note_lap
        self._every_ns = every_ns
        self._timed = EventClock(make_event, capacity)
        self._free = [make_event() for _ in range(capacity)]
        self._due_ns = clock_ns()
        self._left = 0

    def restart(self) -> None:
        """Forget the end of the step before: the next one has no gap."""
        self._timed.restart()

    def leave_untimed(self) -> None:
        """Leave the step under way without times."""
        self._timed.leave_untimed()

    def begin(self) -> None:
        """Mark the start of a step if it is timed."""
        if self._left == 0 and (now_ns := self._clock_ns()) >= self._due_ns:
            self._left, self._due_ns = 2, now_ns + self._every_ns
            self._timed.restart()
        if self._left:
            self._timed.begin()

    def lap(self, phase: Phase) -> None:
        """Mark the end of a phase if the step is timed."""
        self._note_lap()
        if self._left:
            self._timed.lap(phase)

    def end(self, *, is_late: bool = False) -> StepTicket | None:
        """End the step. Returns None when the pool of events was empty."""
        if self._left:
            self._left -= 1
            return self._timed.end(is_late=is_late)
        try:
            event = self._free.pop()
        except IndexError:
            return None
        event.record()
        return EndTicket(event, self._free)

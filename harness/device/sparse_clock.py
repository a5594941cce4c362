"""Times a step now and then, on a device whose events can be read only by waiting for it (Apple's)."""

from collections.abc import Callable

from harness.device.event_clock import EventClock, TimedEvent
from harness.device.protocol import PhaseTimes, StepTicket
from harness.records import Phase


class EndTicket:
    """A step that is not timed: one event tells when it is over."""

    __slots__ = ("_event", "_free")

    def __init__(self, event: TimedEvent, free: list[TimedEvent]) -> None:
        self._event: TimedEvent | None = event
        self._free = free

    def ready(self) -> bool:
        """Whether the device has finished the step. Never waits."""
        return self._event is None or self._event.query()

    def resolve(self) -> PhaseTimes | None:
        """No times. Frees the event."""
        event, self._event = self._event, None
        if event is not None:
            self._free.append(event)
        return None


class SparseClock:
    """Implements `harness.device.protocol.DeviceClock`: two steps in a row are timed every `every_ns`, the
    first for the second's gap; each other step has one event at its end."""

    def __init__(
        self,
        make_event: Callable[[], TimedEvent],
        clock_ns: Callable[[], int],
        note_lap: Callable[[], None],
        every_ns: int,
        capacity: int,
    ) -> None:
        """`note_lap` is called at the end of each phase. `capacity` steps that are not timed may be on their
        way, and the two that are have as many events between them."""
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

    def begin(self) -> None:
        """Mark the start of a step, where it is timed."""
        if self._left == 0 and (now_ns := self._clock_ns()) >= self._due_ns:
            self._left, self._due_ns = 2, now_ns + self._every_ns
            self._timed.restart()
        if self._left:
            self._timed.begin()

    def lap(self, phase: Phase) -> None:
        """Mark the end of a phase, where the step is timed."""
        self._note_lap()
        if self._left:
            self._timed.lap(phase)

    def end(self) -> StepTicket | None:
        """Close the step. None: the supply of events was empty."""
        if self._left:
            self._left -= 1
            return self._timed.end()
        try:
            event = self._free.pop()
        except IndexError:
            return None
        event.record()
        return EndTicket(event, self._free)

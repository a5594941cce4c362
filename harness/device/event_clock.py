"""A device's clock made of a ring of timed events: marks are left in passing and read when they are due.

Nothing here waits for the device. A step of n laps costs n+1 events, taken from a fixed supply and given back
when its ticket is resolved; a supply that is empty leaves the step untimed, and counted.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

from harness.device.protocol import PhaseTimes
from harness.records import Phase


class TimedEvent(Protocol):
    """What is used of `torch.cuda.Event(enable_timing=True)`."""

    @property
    def record(self) -> Callable[..., None]:
        """Marks this place in the queue of work, of the current stream where none is given."""
        ...

    def query(self) -> bool:
        """Whether the device has got here. Never waits."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this mark to `end_event`, both reached."""
        ...


# Enough for some 800 steps of five events that the device has not finished.
CAPACITY = 4096


class _SharedMark:
    """A step's last event. Its own ticket and the next step (for the gap) both need it; the second to let go
    puts it back. `list.pop` is atomic, so they may do so on two threads."""

    __slots__ = ("_claims", "_free", "event")

    def __init__(self, event: TimedEvent, free: list[TimedEvent]) -> None:
        self.event = event
        self._free = free
        self._claims = [None]

    def release(self) -> None:
        try:
            self._claims.pop()
        except IndexError:
            self._free.append(self.event)


class EventTicket:
    """The device times of one step. Resolve every ticket once it is ready: that frees its events."""

    __slots__ = ("_before", "_chain", "_end", "_free", "_phases", "_times")

    def __init__(
        self,
        chain: Sequence[TimedEvent],
        phases: Sequence[Phase],
        before: _SharedMark | None,
        end: _SharedMark,
        free: list[TimedEvent],
    ) -> None:
        self._chain = chain
        self._phases = phases
        self._before = before
        self._end = end
        self._free = free
        self._times: PhaseTimes | None = None

    def ready(self) -> bool:
        """Whether the device has finished the step. Never waits."""
        return self._times is not None or self._end.event.query()

    def resolve(self) -> PhaseTimes:
        """The step's device times; only when `ready`. Frees the step's events; may be called again."""
        if self._times is not None:
            return self._times
        chain, before = self._chain, self._before
        phases_ns: dict[Phase, int] = {}
        for phase, (start, end) in zip(self._phases, pairwise(chain), strict=False):
            phases_ns[phase] = phases_ns.get(phase, 0) + _elapsed_ns(start, end)
        gap_ns = None if before is None else _elapsed_ns(before.event, chain[0])
        self._times = PhaseTimes(_elapsed_ns(chain[0], chain[-1]), phases_ns, gap_ns)
        self._free.extend(chain[:-1])
        self._end.release()
        if before is not None:
            before.release()
        self._chain, self._before = (), None
        return self._times


class EventClock:
    """Implements `harness.device.protocol.DeviceClock`. One thread marks; tickets may be resolved on another.

    The last lap is the step's end. Work issued between it and the next `begin` counts as gap, so call `begin`
    when the batch has arrived: the gap is then the least time the device stood waiting.
    """

    def __init__(
        self,
        make_event: Callable[[], TimedEvent],
        capacity: int = CAPACITY,
        current_stream: Callable[[], Any] | None = None,
    ) -> None:
        """`current_stream` is called for the stream once per step: an event that is given none looks it up at
        each mark, which makes a new object. None: events of this device take no stream."""
        self._current_stream = current_stream
        self._stream: Any = None
        self._free = [make_event() for _ in range(capacity)]
        self._chain: list[TimedEvent] = []
        self._phases: list[Phase] = []
        self._before: _SharedMark | None = None
        self._full = False
        # How many steps found the ring empty.
        self.untimed_steps = 0

    def restart(self) -> None:
        """Forget the end of the step before: the next one has no gap."""
        self._drop()

    def begin(self) -> None:
        """Mark the start of a step. A step that was never ended (it raised) is dropped."""
        if self._chain or self._full:
            self._drop()
        self._full = False
        if self._current_stream is not None:
            self._stream = self._current_stream()
        self._mark()

    def lap(self, phase: Phase) -> None:
        """Mark the end of a phase; laps of the same phase add up."""
        if self._mark():
            self._phases.append(phase)

    def end(self) -> EventTicket | None:
        """Close the step. None: the ring was empty at some point of it."""
        if not self._phases:
            self._mark()
        if self._full:
            self.untimed_steps += 1
            self._drop()
            return None
        end = _SharedMark(self._chain[-1], self._free)
        ticket = EventTicket(self._chain, self._phases, self._before, end, self._free)
        self._chain, self._phases, self._before = [], [], end
        return ticket

    def _mark(self) -> bool:
        if self._full:
            return False
        try:
            event = self._free.pop()
        except IndexError:
            self._full = True
            return False
        if self._stream is None:
            event.record()
        else:
            event.record(self._stream)
        self._chain.append(event)
        return True

    def _drop(self) -> None:
        self._free.extend(self._chain)
        if self._before is not None:
            self._before.release()
        self._chain, self._phases, self._before = [], [], None


def _elapsed_ns(start: TimedEvent, end: TimedEvent) -> int:
    return round(start.elapsed_time(end) * 1e6)

"""A device clock from a pool of timed events: recorded without waiting, read when the device has finished.

Nothing here synchronizes with the device. A step of n laps takes n+1 events from a fixed pool, to which they
return when the step's ticket is resolved; with an empty pool the step is untimed, and counted.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Protocol

from harness.device.protocol import PhaseTimes
from harness.records.run import Phase


class TimedEvent(Protocol):
    """The part of `torch.cuda.Event(enable_timing=True)` in use."""

    @property
    def record(self) -> Callable[..., None]:
        """Record the event on a stream, the current one by default."""
        ...

    def query(self) -> bool:
        """Return whether the device has reached the event. Never waits."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Return the milliseconds from this event to `end_event`, both reached."""
        ...


# Enough for about 800 unfinished steps of five events.
CAPACITY = 4096


class _SharedMark:
    """The last event of a step, shared by its ticket and the next step (for the gap); the second release
    returns it to the pool. `list.pop` is atomic, so the two may be on different threads."""

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
    """The device times of one step. Resolve every ticket once it is ready: that returns its events."""

    __slots__ = ("_before", "_chain", "_end", "_free", "_is_mixed", "_is_timed", "_last", "_phases", "_times")

    def __init__(
        self,
        chain: Sequence[TimedEvent],
        phases: Sequence[Phase],
        before: _SharedMark | None,
        end: _SharedMark,
        free: list[TimedEvent],
        last: TimedEvent | None,
        *,
        is_mixed: bool,
        is_timed: bool,
    ) -> None:
        """`last` is an event behind the step's last mark, `is_mixed` whether the marks are on several
        streams, `is_timed` whether only work of the step is between them."""
        self._last = last
        self._is_mixed, self._is_timed = is_mixed, is_timed
        self._chain = chain
        self._phases = phases
        self._before = before
        self._end = end
        self._free = free
        self._times: PhaseTimes | None = None

    def ready(self) -> bool:
        """Return whether the device has finished the step. Never waits."""
        if not self._chain:  # It is resolved.
            return True
        if not (self._last or self._end.event).query():
            return False
        return not self._is_mixed or all(event.query() for event in self._chain)

    def resolve(self) -> PhaseTimes | None:
        """Return the step's device times, None when it is untimed; only when `ready`. Returns the events to
        the pool; idempotent."""
        if not self._chain:
            return self._times
        chain, before = self._chain, self._before
        if self._is_timed:
            phases_ns: dict[Phase, int] = {}
            for phase, (start, end) in zip(self._phases, pairwise(chain), strict=False):
                phases_ns[phase] = phases_ns.get(phase, 0) + _elapsed_ns(start, end)
            gap_ns = None if before is None else _elapsed_ns(before.event, chain[0])
            self._times = PhaseTimes(_elapsed_ns(chain[0], chain[-1]), phases_ns, gap_ns)
        self._free.extend(chain[:-1])
        if self._last is not None:
            self._free.append(self._last)
            self._last = None
        self._end.release()
        if before is not None:
            before.release()
        self._chain, self._before = (), None
        return self._times


class EventClock:
    """Implements `harness.device.protocol.DeviceClock`. One thread records; another may resolve tickets.

    The last lap is the step's end. Work issued between it and the next `begin` counts as gap, so call `begin`
    when the batch has arrived: the gap is then a lower bound of the device's idle time.
    """

    def __init__(
        self,
        make_event: Callable[[], TimedEvent],
        capacity: int = CAPACITY,
        current_stream: Callable[[], Any] | None = None,
    ) -> None:
        """`current_stream` returns the stream of each mark (see `harness.device.current_stream`): without one
        each record would create an object for it. None: the events of this device take no stream."""
        self._current_stream = current_stream
        self._stream: Any = None
        self._is_mixed, self._is_timed = False, True
        self._free = [make_event() for _ in range(capacity)]
        self._chain: list[TimedEvent] = []
        self._phases: list[Phase] = []
        self._before: _SharedMark | None = None
        self._full = False

    def restart(self) -> None:
        """Forget the end of the step before: the next one has no gap."""
        self._drop()

    def leave_untimed(self) -> None:
        """Leave the step under way without times; before its first mark, leave the next one without a gap."""
        if self._chain:
            self._is_timed = False
        else:
            self._drop()

    def begin(self) -> None:
        """Mark the start of a step. Drops a step that did not end, because it raised."""
        if self._chain or self._full:
            self._drop()
        self._full = self._is_mixed = False
        self._is_timed = True
        if self._current_stream is not None:
            self._stream = self._current_stream()
        self._mark()

    def lap(self, phase: Phase) -> None:
        """Mark the end of a phase; laps of the same phase are summed."""
        if self._mark():
            self._phases.append(phase)

    def end(self, *, is_late: bool = False) -> EventTicket | None:
        """End the step. Returns None if the pool was empty at some point of it. `is_late`: work of the step
        was issued after its last lap, such as the copy of the loss: the ticket waits for it, and it is in no
        time."""
        if not self._phases:
            self._mark()
        last = self._record() if is_late else None
        if self._full:
            if last is not None:
                self._free.append(last)
            self._drop()
            return None
        end = _SharedMark(self._chain[-1], self._free)
        ticket = EventTicket(
            self._chain,
            self._phases,
            self._before,
            end,
            self._free,
            last,
            is_mixed=self._is_mixed,
            is_timed=self._is_timed,
        )
        self._chain, self._phases, self._before = [], [], end
        return ticket

    def _mark(self) -> bool:
        event = self._record()
        if event is not None:
            self._chain.append(event)
        return event is not None

    def _record(self) -> TimedEvent | None:
        """Record an event on the current stream; None if the pool is empty, or was in this step."""
        if self._full:
            return None
        try:
            event = self._free.pop()
        except IndexError:
            self._full = True
            return None
        if self._current_stream is None:
            event.record()
            return event
        stream = self._current_stream()
        if stream is not self._stream:
            self._stream, self._is_mixed = stream, True
        event.record(stream)
        return event

    def _drop(self) -> None:
        self._free.extend(self._chain)
        if self._before is not None:
            self._before.release()
        self._chain, self._phases, self._before = [], [], None


def _elapsed_ns(start: TimedEvent, end: TimedEvent) -> int:
    return round(start.elapsed_time(end) * 1e6)

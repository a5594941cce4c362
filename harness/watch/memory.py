"""Memory readings at the ends of steps, as often as their overhead allows."""

import time
from collections import deque
from collections.abc import Callable

from harness.device.protocol import Device
from harness.records.run import MAX_SHARED_READING_NS, MemoryReading

# Steps this long have a reading each. Shorter ones share one: on the CPU a reading takes 40 to 200 µs,
# because malloc's statistics walk lists that training has evicted from the caches.
OWN_NS = 20_000_000
# The time between the readings of shorter ones, unless readings are slow.
SHARED_NS = MAX_SHARED_READING_NS // 2
# Twice that time, where the newest reading is no higher than so many before it.
STEADY_READINGS = 100
# The largest share of the time for readings. Where they take more, as those of a heap with many free blocks,
# fewer steps are read.
MOST_SHARE = 0.01
# A single slow reading is no sign of the next one's duration; the median of these is.
_DURATIONS = 3

# The nine columns of `StepRow` from `allocated_bytes` to `rss_bytes`.
MemoryColumns = tuple[
    int | None, int | None, int | None, int | None, int | None, int | None, int | None, int | None, int | None
]
_NO_COLUMNS: MemoryColumns = (None,) * 9


class MemoryWatch:
    """The memory of each step. Used on the training thread.

    A step of `OWN_NS` and longer has its own reading, with the peak within it. Of shorter ones one per
    `shared_ns` has, and half as many where the memory does not rise. If readings take more than `MOST_SHARE`
    of the time, fewer steps of any length are read. A reading applies to later steps for
    `MAX_SHARED_READING_NS`; after that they have the process's RSS alone. A peak tracked by the device's
    allocator is that since the previous reading. Where the ends of phases measure the peak, a step is read
    only if that was intended from its beginning: otherwise its peak would be the level at its end.

    Attributes:
        columns: the newest reading; without the allocator's once they are too old.
        read_ns: time of the newest baseline; None: after the newest step, since a restart.
        due_ns: call `step_ended` for a step after which the next one may end at this time or later.
        highest_peak_bytes: the highest peak of a reading since a restart; None: unknown.
        on_failed: called at a reading with the number of requests that failed since the one before, where the
            allocator counts them. Those before the first reading are left out.
    """

    def __init__(
        self,
        device: Device,
        shared_ns: int = SHARED_NS,
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`cpu_ns` returns the processor time of the calling thread: on a busy machine a reading that was
        only interrupted is not slow."""
        self.columns: MemoryColumns = _NO_COLUMNS
        self._baseline_bytes: int | None = None
        self.read_ns: int | None = None
        self.highest_peak_bytes: int | None = None
        self.on_failed: Callable[[int], None] | None = None
        self._failures = 0
        self._ooms: int | None = None
        self.due_ns = 0
        self._note_peak, self._begin_peak = device.note_peak, device.begin_peak
        self._notes = 0
        self._read_memory = device.read_memory
        self._rss_bytes = device.rss_bytes
        self._reserves_rss = device.reserves_rss
        self._shared_ns = shared_ns
        self._cpu_ns = cpu_ns
        self._durations_ns: deque[int] = deque(maxlen=_DURATIONS)
        self._levels: deque[int] = deque(maxlen=STEADY_READINGS)
        self._is_steady = False
        self._next_ns = self._columns_ns = self._earlier_step_ns = 0
        self._is_sampled = True
        self._unsettled_steps = 0
        self._on_change: Callable[[bool], None] | None = None

    @property
    def is_sampled(self) -> bool:
        """Return whether the current step is to be read. May be called from any thread."""
        return self._is_sampled

    @property
    def baseline_bytes(self) -> int | None:
        """Allocated memory between two steps at the last reading, see `read_ns`."""
        return self._baseline_bytes

    def age_ns(self, end_ns: int) -> int:
        """Return the age of the baseline at `end_ns`, the end of the newest step; 0: read then or later."""
        return 0 if self.read_ns is None else max(0, end_ns - self.read_ns)

    def note_peak(self) -> None:
        """Measure the peak of a sampled step at the end of a phase."""
        self._notes += 1
        self._note_peak()

    def restart(self, steps: int) -> None:
        """Discard the reading and the peak after a change or a failed attempt, and read each of the next
        `steps` steps, however short."""
        reading = self._read_memory()
        self._baseline_bytes, self.read_ns = reading.allocated_bytes, None
        self.highest_peak_bytes = None
        self._note_failures(reading)
        self.columns = _NO_COLUMNS
        self.due_ns = self._next_ns = 0
        self._unsettled_steps = max(steps, self._unsettled_steps)
        self._set_sampled(True)

    def leave_out(self, duration_ns: int) -> int | None:
        """Begin a new peak, as that so far is of something else than the step under way, which has taken
        `duration_ns` since the last step; return it. None: unknown, or the next step may have none."""
        if self._is_sampled or duration_ns >= OWN_NS:
            return self._begin_peak()
        return None

    def has_failures(self, reading: MemoryReading | None) -> bool:
        """Return whether an allocation failed or was retried after emptying the cache between the newest
        reading (before the first one: the start of the process) and `reading`."""
        return reading is not None and _failures(reading) > self._failures

    def count_failures(self) -> None:
        """Call `on_failed` for failures since the newest reading, where the allocator counts them."""
        if self._ooms is not None:
            self._note_failures(self._read_memory())

    def subscribe(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` now and at every change, with whether the current step is sampled."""
        self._on_change = callback
        callback(self._is_sampled)

    def step_ended(self, now_ns: int, step_ns: int) -> None:
        """Read the memory if it is due, at the end of a step of `step_ns`. The next one is expected to take
        as long, or as long as the one before, as steps of two lengths may take turns."""
        if self._is_sampled or (now_ns >= self._next_ns and self._on_change is None):
            self._read(now_ns, step_ns)
        elif now_ns >= self.due_ns:
            self.due_ns = min(now_ns + self._shared_by(step_ns), self._next_ns)
            if now_ns >= self._columns_ns + MAX_SHARED_READING_NS:
                rss_bytes = self._rss_bytes()
                self.columns = (None, rss_bytes if self._reserves_rss else None, *(None,) * 6, rss_bytes)
        self._set_sampled(now_ns + max(step_ns, self._earlier_step_ns) >= self._next_ns)
        self._earlier_step_ns = step_ns

    def _read(self, now_ns: int, step_ns: int) -> None:
        began_ns = self._cpu_ns()
        reading = self._read_memory()
        self._durations_ns.append(self._cpu_ns() - began_ns)
        self.columns, self._columns_ns = (*reading, self._rss_bytes()), now_ns
        if (level_bytes := reading.allocated_bytes) is not None:
            self._baseline_bytes, self.read_ns = level_bytes, now_ns
            has_all = len(self._levels) == STEADY_READINGS
            self._is_steady = has_all and level_bytes <= max(self._levels)
            self._levels.append(level_bytes)
        if (peak_bytes := reading.peak_allocated_bytes) is not None:
            highest_bytes = self.highest_peak_bytes
            self.highest_peak_bytes = peak_bytes if highest_bytes is None else max(highest_bytes, peak_bytes)
        self._note_failures(reading)
        readings, self._notes = self._notes + 1, 0
        self._unsettled_steps -= 1
        if self._unsettled_steps > 0:
            self.due_ns = self._next_ns = now_ns
            return
        self.due_ns = now_ns + self._shared_by(step_ns)
        self._next_ns = max(self.due_ns, now_ns + self._pause_ns(readings))

    def _note_failures(self, reading: MemoryReading) -> None:
        self._failures = _failures(reading)
        before, self._ooms = self._ooms, reading.ooms
        if before is not None and self.on_failed is not None and (reading.ooms or 0) > before:
            self.on_failed((reading.ooms or 0) - before)

    def _shared_by(self, step_ns: int) -> int:
        """Return how long steps of `step_ns` share a reading that is not slow."""
        if step_ns >= OWN_NS:
            return 0
        return 2 * self._shared_ns if self._is_steady else self._shared_ns

    def _pause_ns(self, readings: int) -> int:
        """Return the least time between two sampled steps of so many readings each."""
        if len(self._durations_ns) < _DURATIONS:
            return 0
        return int(sorted(self._durations_ns)[_DURATIONS // 2] * readings / MOST_SHARE)

    def _set_sampled(self, is_sampled: bool) -> None:
        if is_sampled is not self._is_sampled:
            self._is_sampled = is_sampled
            if self._on_change is not None:
                self._on_change(is_sampled)


def _failures(reading: MemoryReading) -> int:
    """Return the failed or retried requests since the process began; 0 where nothing counts them."""
    return (reading.alloc_retries or 0) + (reading.ooms or 0)

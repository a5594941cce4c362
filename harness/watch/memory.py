"""Memory readings at the ends of steps, as often as their overhead allows."""

from collections.abc import Callable

from harness.device.protocol import Device
from harness.records.run import MAX_SHARED_READING_NS, MemoryReading

# Steps this long have a reading each. Shorter ones share one: on the CPU a reading takes some 60 µs, because
# malloc's statistics walk lists that training has evicted from the processor's caches.
OWN_NS = 20_000_000

# The nine columns of `StepRow` from `allocated_bytes` to `rss_bytes`.
MemoryColumns = tuple[
    int | None, int | None, int | None, int | None, int | None, int | None, int | None, int | None, int | None
]


class MemoryWatch:
    """The memory of each step. Used on the training thread.

    A step of `OWN_NS` and longer has its own reading, with the peak within it. Of shorter ones one per
    `shared_ns` has; between two readings the last one applies, and a peak tracked by the device's allocator
    is then that since the previous reading.

    Attributes:
        columns: the newest reading.
        read_ns: time of the newest baseline; None: after the newest step, since a restart.
        due_ns: call `step_ended` for a step after which the next one may end at this time or later.
        note_peak: measures the peak of a sampled step at the end of a phase.
    """

    def __init__(self, device: Device, shared_ns: int = MAX_SHARED_READING_NS) -> None:
        self.columns: MemoryColumns = (None,) * 9
        self._baseline_bytes: int | None = None
        self.read_ns: int | None = None
        self._failures = 0
        self.due_ns = 0
        self.note_peak = device.note_peak
        self._read_memory = device.read_memory
        self._rss_bytes = device.rss_bytes
        self._shared_ns = shared_ns
        self._is_sampled = True
        self._unsettled_steps = 0
        self._on_change: Callable[[bool], None] | None = None

    @property
    def baseline_bytes(self) -> int | None:
        """Allocated memory between two steps at the last reading, see `read_ns`."""
        return self._baseline_bytes

    def age_ns(self, end_ns: int) -> int:
        """Return the age of the baseline at `end_ns`, the end of the newest step; 0: read then or later."""
        return 0 if self.read_ns is None else max(0, end_ns - self.read_ns)

    def restart(self, steps: int) -> None:
        """Discard the reading and the peak after a change, and read each of the next `steps` steps, however
        short."""
        reading = self._read_memory()
        self._baseline_bytes, self.read_ns = reading.allocated_bytes, None
        self._failures = _failures(reading)
        self.columns = (None,) * 9
        self.due_ns = 0
        self._unsettled_steps = steps
        self._set_sampled(True)

    def has_failures(self, reading: MemoryReading | None) -> bool:
        """Return whether an allocation failed or was retried after emptying the cache between the newest
        reading (before the first one: the start of the process) and `reading`."""
        return reading is not None and _failures(reading) > self._failures

    def subscribe(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` now and at every change, with whether the current step is sampled."""
        self._on_change = callback
        callback(self._is_sampled)

    def step_ended(self, now_ns: int, step_ns: int) -> None:
        """Read the memory if it is due, at the end of a step of `step_ns`, the expected duration of the
        next."""
        if self._is_sampled or now_ns >= self.due_ns:
            reading = self._read_memory()
            self.columns = (*reading, self._rss_bytes())
            if reading.allocated_bytes is not None:
                self._baseline_bytes, self.read_ns = reading.allocated_bytes, now_ns
            self._failures = _failures(reading)
            self._unsettled_steps -= 1
            is_own = self._unsettled_steps > 0 or step_ns >= OWN_NS
            self.due_ns = now_ns + (0 if is_own else self._shared_ns)
        self._set_sampled(now_ns + step_ns >= self.due_ns)

    def _set_sampled(self, is_sampled: bool) -> None:
        if is_sampled is not self._is_sampled:
            self._is_sampled = is_sampled
            if self._on_change is not None:
                self._on_change(is_sampled)


def _failures(reading: MemoryReading) -> int:
    """Return the failed or retried requests since the process began; 0 where nothing counts them."""
    return (reading.alloc_retries or 0) + (reading.ooms or 0)

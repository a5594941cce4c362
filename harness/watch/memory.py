"""Reads a device's memory as steps end, as often as that is cheap enough."""

from collections.abc import Callable

from harness.device.protocol import Device
from harness.records.run import MAX_SHARED_READING_NS, MemoryReading

# Steps this long have a reading each. Shorter ones share one: on the CPU a reading costs some 60 µs, because
# asking malloc walks lists that training has driven out of the processor's caches.
OWN_NS = 20_000_000

# The nine columns of `StepRow` from `allocated_bytes` to `rss_bytes`.
MemoryColumns = tuple[
    int | None, int | None, int | None, int | None, int | None, int | None, int | None, int | None, int | None
]


class MemoryWatch:
    """The memory beside each step. Used on the training thread.

    A step of `OWN_NS` and longer has a reading of its own, with the peak reached within it. Of shorter ones
    one every `shared_ns` has; between two readings the last one stands, and a peak that the device's
    allocator tracks itself is then that since the reading before.

    Attributes:
        columns: the newest reading.
        read_ns: when the newest level was read; None: after the newest step, before which something changed.
        due_ns: call `step_ended` for a step after which the next one may end at this time or later.
        note_peak: takes part in finding the peak of a step that is looked at, at the end of a phase.
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
        """How long before `end_ns`, the end of the newest step, the level was read; 0: then, or since."""
        return 0 if self.read_ns is None else max(0, end_ns - self.read_ns)

    def restart(self, steps: int) -> None:
        """Forget the reading and the peak so far, and read each of the next `steps` steps, however short:
        something has just changed."""
        reading = self._read_memory()
        self._baseline_bytes, self.read_ns = reading.allocated_bytes, None
        self._failures = _failures(reading)
        self.columns = (None,) * 9
        self.due_ns = 0
        self._unsettled_steps = steps
        self._set_sampled(True)

    def has_failures(self, reading: MemoryReading | None) -> bool:
        """Whether the allocator could not serve a request, or only after it had emptied its cache, between
        the newest reading and `reading`; before the first one, since the process began."""
        return reading is not None and _failures(reading) > self._failures

    def subscribe(self, callback: Callable[[bool], None]) -> None:
        """Have `callback` called now and whenever it changes whether the step under way is looked at."""
        self._on_change = callback
        callback(self._is_sampled)

    def step_ended(self, now_ns: int, step_ns: int) -> None:
        """Read the memory where it is due, at the end of a step that took `step_ns`, as the next is expected
        to."""
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
    """Requests that failed or were tried again since the process began; 0 where nothing counts them."""
    return (reading.alloc_retries or 0) + (reading.ooms or 0)

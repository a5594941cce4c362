"""Reads a device's memory as steps end, as often as that is cheap enough."""

from harness.device.protocol import Device

EVERY_NS = 5_000_000
"""Steps shorter than this share readings: on the CPU a step that is looked at costs some 15 µs, because
asking malloc walks lists that training has driven out of the processor's caches."""

MemoryColumns = tuple[
    int | None, int | None, int | None, int | None, int | None, int | None, int | None, int | None, int | None
]
"""The nine columns of `StepRow` from `allocated_bytes` to `rss_bytes`."""


class MemoryWatch:
    """The memory beside each step. Used on the training thread.

    A step of `every_ns` and longer has a reading of its own, with the peak reached within it. Of shorter ones
    every so many-th has; between two readings the last one stands, and a peak that the device's allocator
    tracks itself is then that since the reading before.

    Attributes:
        looking: whether the step under way should have a reading.
        note_peak: takes part in finding its peak, at the end of a phase.
    """

    def __init__(self, device: Device, every_ns: int = EVERY_NS) -> None:
        self.looking = True
        self.note_peak = device.note_peak
        self._read_memory = device.read_memory
        self._rss_bytes = device.rss_bytes
        self._every_ns = every_ns
        self._due_ns = 0
        self._columns: MemoryColumns = (None,) * 9

    def read(self, now_ns: int, step_ns: int) -> MemoryColumns:
        """The memory at the end of a step that ended at `now_ns` and took `step_ns`, as the next is expected
        to."""
        if self.looking or now_ns >= self._due_ns:
            self._columns = (*self._read_memory(), self._rss_bytes())
            self._due_ns = now_ns + self._every_ns
        self.looking = now_ns + step_ns >= self._due_ns
        return self._columns

"""Peaks of an allocator whose peak counters belong to the training script, which may read and reset them."""

from harness.records.run import MemoryReading


class SharedPeak:
    """Tells which peaks were reached since the previous reading, without resetting the counters.

    A counter above its value at the previous reading was raised in between, by exactly its new value. One
    that has not grown says nothing about the time in between, and one below its previous value was reset by
    the script: the peak is then unknown.
    """

    def __init__(self) -> None:
        self._allocated_bytes: int | None = None
        self._reserved_bytes: int | None = None

    def since_previous(self, reading: MemoryReading) -> MemoryReading:
        """Return `reading` with the peaks reached since the previous call; None where they are unknown."""
        allocated_bytes, reserved_bytes = reading.peak_allocated_bytes, reading.peak_reserved_bytes
        own = reading._replace(
            peak_allocated_bytes=_grown(self._allocated_bytes, allocated_bytes),
            peak_reserved_bytes=_grown(self._reserved_bytes, reserved_bytes),
        )
        self._allocated_bytes, self._reserved_bytes = allocated_bytes, reserved_bytes
        return own


def _grown(before_bytes: int | None, now_bytes: int | None) -> int | None:
    is_grown = before_bytes is not None and now_bytes is not None and now_bytes > before_bytes
    return now_bytes if is_grown else None

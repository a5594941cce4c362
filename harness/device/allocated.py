"""Allocated memory, computed from the breakdown of reserved memory."""

from harness.device.protocol import AllocatorReading


def allocated_bytes(reading: AllocatorReading) -> int | None:
    """Return reserved memory minus all that is free or pending; None when that is unknown."""
    if reading.reserved_bytes is None or reading.free_bytes is None:
        return None
    unused = (
        reading.free_bytes,
        reading.split_free_bytes or 0,
        reading.private_free_bytes or 0,
        reading.waiting_bytes or 0,
    )
    return max(0, reading.reserved_bytes - sum(unused))

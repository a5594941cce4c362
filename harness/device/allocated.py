"""What of an allocator's memory is handed out, from how that memory is cut up."""

from harness.device.protocol import AllocatorReading


def allocated_bytes(reading: AllocatorReading) -> int | None:
    """What is left of reserved after all that is free or waits to be; None when reserved is not known."""
    if reading.reserved_bytes is None or reading.free_bytes is None:
        return None
    unused = (
        reading.free_bytes,
        reading.split_free_bytes or 0,
        reading.private_free_bytes or 0,
        reading.waiting_bytes or 0,
    )
    return max(0, reading.reserved_bytes - sum(unused))

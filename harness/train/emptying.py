"""Empties the allocator's cache when a person asks for it, and says what that gave back."""

from collections.abc import Callable
from typing import NamedTuple

from harness import words
from harness.device.protocol import Device


class Emptied(NamedTuple):
    """What emptying the cache gave back, None where the device does not tell, and how long it took."""

    freed_bytes: int | None
    took_ns: int

    @property
    def message(self) -> str:
        """One sentence for a person."""
        if self.freed_bytes is None:
            return "Emptied the cache."
        return f"Gave back {words.size(self.freed_bytes)} of reserved memory."


def empty_cache(device: Device, clock_ns: Callable[[], int]) -> Emptied:
    """Give the allocator's cache back to the system."""
    before = device.read_memory().reserved_bytes
    began_ns = clock_ns()
    device.empty_cache()
    took_ns = clock_ns() - began_ns
    after = device.read_memory().reserved_bytes
    freed = None if before is None or after is None else max(0, before - after)
    return Emptied(freed, took_ns)

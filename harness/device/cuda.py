"""A CUDA device to train on: the caching allocator's figures, a clock of CUDA events, and a cap on its cache.

A run is a process of its own, so it may reset the allocator's peaks every step; nobody else reads them.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.device.allocator import read_segments
from harness.device.cap import require_room
from harness.device.event_clock import EventClock
from harness.device.protocol import AllocatorReading, DeviceClock, RoomReading
from harness.device.rss import RssGauge
from harness.records import DeviceFacts, MemoryReading

# What the caching allocator takes at once for requests of 1 to 10 MiB: less headroom would allow nothing.
SEGMENT_BYTES = 20 << 20


class CudaDevice:
    """Implements `harness.device.protocol.Device`. Use it in one process at a time."""

    samples_peak = False

    def __init__(self, facts: DeviceFacts, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.facts = facts
        self.torch_device = torch.device(facts.torch_name)
        self._index = self.torch_device.index
        self._rss = RssGauge(clock_ns)
        self._was_capped = False

    def activate(self) -> None:
        """Make it the calling thread's current GPU, because kernels and events go where that is. Left alone,
        a thread would open a context, of hundreds of megabytes, on the first GPU."""
        torch.cuda.set_device(self._index)

    def clock(self) -> DeviceClock | None:
        """A clock of CUDA events on the current stream."""
        return EventClock(_timed_event, current_stream=lambda: torch.cuda.current_stream(self._index))

    def begin_memory(self) -> None:
        """Start the first peak window. The allocator counts this process alone: its level is zero."""
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(self._index)

    def note_peak(self) -> None:
        """Nothing to do: the allocator keeps its own peak."""

    def sample_peak(self) -> None:
        """Nothing to do: the allocator keeps its own peak."""

    def read_memory(self) -> MemoryReading:
        """One call for all figures, then a new window for the peaks. Does not wait for the device: the
        allocator lives on the CPU, and what is queued counts as allocated."""
        reading = reading_of(torch.cuda.memory_stats_as_nested_dict(self._index))
        torch.cuda.reset_peak_memory_stats(self._index)
        return reading

    def read_allocator(self) -> AllocatorReading:
        """Add up the allocator's list of segments and blocks."""
        return read_segments(self._index)

    def read_room(self) -> RoomReading:
        """What the driver says."""
        return RoomReading(*torch.cuda.mem_get_info(self._index))

    def rss_bytes(self) -> int | None:
        """The process's RSS, at most 10 ms old."""
        return self._rss.read()

    def empty_cache(self) -> None:
        """Give the cached blocks that are wholly free back to the driver. Waits for the device."""
        torch.cuda.empty_cache()

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit the memory the allocator reserves; reaching it raises torch.OutOfMemoryError. None lifts it,
        and leaves a process alone that never had one: it may have a limit of its own (PYTORCH_ALLOC_CONF).

        The cache is emptied when it stands in the way. Raises SettingError when less than one segment of
        20 MiB would be left.
        """
        if cap_bytes is None:
            self.lift_cap_for_recovery()
            return
        total_bytes = torch.cuda.mem_get_info(self._index)[1]
        if cap_bytes >= total_bytes:
            self.lift_cap_for_recovery()
            return
        if torch.cuda.memory_reserved(self._index) + SEGMENT_BYTES > cap_bytes:
            torch.cuda.empty_cache()
        reserved_bytes = torch.cuda.memory_reserved(self._index)
        require_room(cap_bytes, reserved_bytes, reserved_bytes + SEGMENT_BYTES)
        torch.cuda.set_per_process_memory_fraction(cap_bytes / total_bytes, self._index)
        self._was_capped = True

    def lift_cap_for_recovery(self) -> None:
        """Take the cap off, where one was set, until `cap_memory` is called again."""
        if self._was_capped:
            torch.cuda.set_per_process_memory_fraction(1.0, self._index)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize(self._index)


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def reading_of(stats: Mapping[str, Any]) -> MemoryReading:
    """The reading in `torch.cuda.memory_stats_as_nested_dict()`; all None before CUDA is initialised.

    With expandable segments `inactive_split_bytes` leaves those out (see MemoryReading's readers).
    """
    if not stats:
        return MemoryReading(None, None, None, None, None, None, None, None)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return MemoryReading(
        allocated["current"],
        reserved["current"],
        stats["active_bytes"]["all"]["current"],
        allocated["peak"],
        reserved["peak"],
        stats["inactive_split_bytes"]["all"]["current"],
        stats["num_alloc_retries"],
        stats["num_ooms"],
    )

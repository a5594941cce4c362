"""An Apple GPU to train on: Metal's memory as torch tells it, a clock of MPS events, and a cap on the cache.

The memory is the machine's own. torch keeps no peak for MPS: it is looked for. Reading the time between two
events waits for everything queued (`MPSEventPool::elapsedTime`), so a step is timed now and then only.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from harness.device.cap import require_room
from harness.device.event_clock import TimedEvent
from harness.device.protocol import AllocatorReading, DeviceClock, RoomReading
from harness.device.rss import RssGauge
from harness.device.sparse_clock import SparseClock
from harness.records import DeviceFacts, MemoryReading

# What the allocator takes from Metal at once for buffers of 1 to 32 MiB (kLargeHeap in MPSAllocator.h).
HEAP_BYTES = 32 << 20
TIMED_EVERY_NS = 1_000_000_000
# Steps that may be on their way. Each event is an object of Metal's, made in advance.
CAPACITY = 256
# torch's own limit, as a multiple of what Metal recommends (default_high_watermark_ratio).
_HIGH_WATERMARK = 1.7
_LIMIT_VARIABLE = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"


class MpsDevice:
    """Implements `harness.device.protocol.Device`. There is one a machine."""

    samples_peak = True

    def __init__(
        self,
        facts: DeviceFacts,
        library: Any = torch.mps,
        torch_device: torch.device | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`library` is the module torch.mps, or its fake, whose tensors lie on `torch_device`."""
        self.facts = facts
        self.torch_device = torch_device or torch.device(facts.torch_name)
        self._library = library
        self._clock_ns = clock_ns
        self._rss = RssGauge(clock_ns)
        self._peak_bytes = 0

    def activate(self) -> None:
        """There is only one."""

    def clock(self) -> DeviceClock | None:
        """A clock of MPS events, which also looks for the peak at the end of each phase."""
        return SparseClock(self._timed_event, self._clock_ns, self.note_peak, TIMED_EVERY_NS, CAPACITY)

    def begin_memory(self) -> None:
        """Start the first peak window. The allocator counts this process alone: its level is zero."""
        self._peak_bytes = 0

    def note_peak(self) -> None:
        """Look at what is allocated. It counts when it is asked for, ahead of the device, as on CUDA."""
        self._peak_bytes = max(self._peak_bytes, self._library.current_allocated_memory())

    def sample_peak(self) -> None:
        """Look from the sampler's thread too."""
        self.note_peak()

    def read_memory(self) -> MemoryReading:
        """What tensors hold, and what Metal holds for this process, its caches and graphs included."""
        allocated = int(self._library.current_allocated_memory())
        reserved = int(self._library.driver_allocated_memory())
        peak, self._peak_bytes = max(self._peak_bytes, allocated), allocated
        return MemoryReading(allocated, reserved, None, peak, None, None, None, None)

    def read_allocator(self) -> AllocatorReading:
        """What is held and in no tensor; how it is cut up is not told."""
        reserved = int(self._library.driver_allocated_memory())
        free = max(0, reserved - int(self._library.current_allocated_memory()))
        return AllocatorReading(reserved, free, None, None, None, None)

    def read_room(self) -> RoomReading:
        """What Metal recommends as the most, and what of it is neither held by this process nor missing from
        the machine's RAM."""
        total = int(self._library.recommended_max_memory())
        left = total - int(self._library.driver_allocated_memory())
        return RoomReading(max(0, min(left, int(psutil.virtual_memory().available))), total)

    def rss_bytes(self) -> int | None:
        """The process's RSS, at most 10 ms old."""
        return self._rss.read()

    def empty_cache(self) -> None:
        """Give the cached buffers back to Metal."""
        self._library.empty_cache()

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit what Metal may hold for this process; reaching it raises a RuntimeError that says so. None
        lifts it. Raises SettingError when less than one heap would be left."""
        total_bytes = int(self._library.recommended_max_memory())
        if cap_bytes is None or cap_bytes >= _HIGH_WATERMARK * total_bytes:
            self.lift_cap_for_recovery()
            return
        if self._library.driver_allocated_memory() + HEAP_BYTES > cap_bytes:
            self._library.empty_cache()
        held_bytes = int(self._library.driver_allocated_memory())
        require_room(cap_bytes, held_bytes, held_bytes + HEAP_BYTES)
        self._library.set_per_process_memory_fraction(cap_bytes / total_bytes)

    def lift_cap_for_recovery(self) -> None:
        """Back to torch's own limit, or to the one that the environment asks for."""
        self._library.set_per_process_memory_fraction(_own_limit(os.environ.get(_LIMIT_VARIABLE)))

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._library.synchronize()

    def _timed_event(self) -> TimedEvent:
        return _MpsEvent(self._library.Event(enable_timing=True))


class _MpsEvent:
    """An MPS event whose time to one that completed in the same moment is zero; torch raises there."""

    __slots__ = ("event", "query", "record")

    def __init__(self, event: Any) -> None:
        self.event = event
        self.record: Callable[[], None] = event.record
        self.query: Callable[[], bool] = event.query

    def elapsed_time(self, end_event: "_MpsEvent", /) -> float:
        try:
            return float(self.event.elapsed_time(end_event.event))
        except RuntimeError as error:
            if "was not recorded after" in str(error):
                return 0.0
            raise


def _own_limit(asked: str | None) -> float:
    try:
        return _HIGH_WATERMARK if asked is None else float(asked)
    except ValueError:
        return _HIGH_WATERMARK

"""An Apple GPU as a training device: Metal's memory from torch, MPS events, and a cap on Metal's memory.

The memory is the machine's RAM. torch tracks no peak for MPS, so the peak is sampled. Reading the time
between two events waits for all queued work (`MPSEventPool::elapsedTime`), so only a few steps are timed.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from harness.device.cap import validate_cap
from harness.device.event_clock import TimedEvent
from harness.device.host.rss import RssGauge
from harness.device.mps.clock import SparseClock
from harness.device.protocol import AllocatorReading, DeviceClock, MemoryInfo
from harness.records.run import DeviceFacts, MemoryReading

# The allocator's heap size for buffers of 1 to 32 MiB (kLargeHeap in MPSAllocator.h).
HEAP_BYTES = 32 << 20
TIMED_EVERY_NS = 1_000_000_000
# Steps that may be unfinished. Each event is a Metal object, created in advance.
CAPACITY = 256
# torch's own limit, as a multiple of Metal's recommended maximum (default_high_watermark_ratio).
_HIGH_WATERMARK = 1.7
_LIMIT_VARIABLE = "PYTORCH_MPS_HIGH_WATERMARK_RATIO"


class MpsDevice:
    """Implements `harness.device.protocol.Device`. A machine has one."""

    samples_peak = True
    reserves_rss = False

    def __init__(
        self,
        facts: DeviceFacts,
        library: Any = torch.mps,
        torch_device: torch.device | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`library` is the module torch.mps, or its fake, whose tensors are on `torch_device`."""
        self.facts = facts
        self.torch_device = torch_device or torch.device(facts.torch_name)
        self._library = library
        self._clock_ns = clock_ns
        self._rss = RssGauge(clock_ns)
        self._peak_bytes = 0
        self._was_capped = False

    def activate(self) -> None:
        """Do nothing: there is one device."""

    def activate_in_background(self) -> None:
        """Do nothing: there is one device."""

    def clock(self) -> DeviceClock | None:
        """Return a clock of MPS events, which also reads the memory at the end of each phase."""
        return SparseClock(self._timed_event, self._clock_ns, self.note_peak, TIMED_EVERY_NS, CAPACITY)

    def begin_memory(self) -> None:
        """Start the first peak window. The allocator counts only this process, so the baseline is zero."""
        self._peak_bytes = 0

    def note_peak(self) -> None:
        """Read allocated memory, which counts from the request on, ahead of the device, as on CUDA."""
        self._peak_bytes = max(self._peak_bytes, self._library.current_allocated_memory())

    def sample_peak(self) -> None:
        """Read allocated memory from the sampler's thread."""
        self.note_peak()

    def begin_peak(self) -> int | None:
        """Start a new peak window; return the highest value read in the one before."""
        peak, self._peak_bytes = self._peak_bytes, 0
        return peak or None

    def read_memory(self) -> MemoryReading:
        """Return the memory in tensors, and Metal's memory of this process, caches and graphs included."""
        allocated = int(self._library.current_allocated_memory())
        reserved = int(self._library.driver_allocated_memory())
        peak, self._peak_bytes = max(self._peak_bytes, allocated), allocated
        return MemoryReading(allocated, reserved, None, peak, None, None, None, None)

    def read_allocator(self) -> AllocatorReading:
        """Return Metal's memory, and what of it is in no tensor; a breakdown is unavailable."""
        reserved = int(self._library.driver_allocated_memory())
        free = max(0, reserved - int(self._library.current_allocated_memory()))
        return AllocatorReading(reserved, free, None, None, None, None)

    def read_memory_info(self) -> MemoryInfo:
        """Return Metal's recommended maximum, and what of it is free: not in use by this process and
        available in the RAM."""
        total = int(self._library.recommended_max_memory())
        left = total - int(self._library.driver_allocated_memory())
        return MemoryInfo(max(0, min(left, int(psutil.virtual_memory().available))), total)

    def rss_bytes(self) -> int | None:
        """The process's RSS, at most 10 ms old."""
        return self._rss.read()

    def empty_cache(self) -> None:
        """Release the cached buffers to Metal."""
        self._library.empty_cache()

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit Metal's memory of this process; exceeding it raises a RuntimeError that names the limit. None
        lifts the limit. Raises SettingError when less than one heap would remain."""
        total_bytes = int(self._library.recommended_max_memory())
        if cap_bytes is None or cap_bytes >= _HIGH_WATERMARK * total_bytes:
            self.lift_cap_for_recovery()
            return
        if self._library.driver_allocated_memory() + HEAP_BYTES > cap_bytes:
            self._library.empty_cache()
        reserved_bytes = int(self._library.driver_allocated_memory())
        validate_cap(cap_bytes, reserved_bytes, reserved_bytes + HEAP_BYTES, "the allocator's next heap")
        self._library.set_per_process_memory_fraction(cap_bytes / total_bytes)
        self._was_capped = True

    def lift_cap_for_recovery(self) -> None:
        """Restore torch's own limit, or that of the environment, if a cap was set: torch cannot read a limit
        that the script has set before."""
        if self._was_capped:
            self._library.set_per_process_memory_fraction(_default_limit(os.environ.get(_LIMIT_VARIABLE)))

    def limit_bytes(self) -> int | None:
        """Return None: not known."""
        return None

    def sibling(self, index: int) -> None:
        """Return None: there is one device."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._library.synchronize()

    def _timed_event(self) -> TimedEvent:
        return _MpsEvent(self._library.Event(enable_timing=True))


class _MpsEvent:
    """An MPS event whose time to one that completed at the same moment is zero, where torch raises."""

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


def _default_limit(variable: str | None) -> float:
    try:
        return _HIGH_WATERMARK if variable is None else float(variable)
    except ValueError:
        return _HIGH_WATERMARK

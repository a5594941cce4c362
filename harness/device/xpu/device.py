"""An Intel GPU as a training device: statistics of the caching allocator, XPU events, and a memory cap.

Built like `harness.device.cuda.device`; with an older torch that lacks the cap, a cap is rejected.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.device.cap import ProcessFraction, validate_cap
from harness.device.event_clock import EventClock, TimedEvent
from harness.device.host.rss import RssGauge
from harness.device.protocol import AllocatorReading, DeviceClock, MemoryInfo
from harness.device.shared_peak import SharedPeak
from harness.device.xpu.facts import xpu_facts
from harness.errors import DeviceError
from harness.records.run import DeviceFacts, MemoryReading

# The caching allocator's segment size for requests of 1 to 10 MiB (kLargeBuffer, as on CUDA).
SEGMENT_BYTES = 20 << 20


class XpuDevice:
    """Implements `harness.device.protocol.Device`, for one process at a time."""

    samples_peak = False
    reserves_rss = False

    def __init__(
        self,
        facts: DeviceFacts,
        library: Any = torch.xpu,
        torch_device: torch.device | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        *,
        owns_peaks: bool = True,
    ) -> None:
        """`library` is the module torch.xpu, or its fake, whose tensors are on `torch_device`; `owns_peaks`
        is whether the allocator's peak counters may be reset."""
        self.facts = facts
        self.torch_device = torch_device or torch.device(facts.torch_name)
        self._library = library
        self._index = facts.ordinal or 0
        self._rss = RssGauge(clock_ns)
        self._fraction = ProcessFraction(library, self._index)
        self._shared_peak = None if owns_peaks else SharedPeak()

    def activate(self) -> None:
        """Make it the calling thread's current device, to which kernels and events go."""
        self._library.set_device(self._index)

    def activate_in_background(self) -> None:
        """Like `activate`."""
        self.activate()

    def clock(self) -> DeviceClock | None:
        """Return a clock of XPU events on the current stream; None when torch was built with a compiler whose
        events cannot be timed."""
        first, second = self._timed_event(), self._timed_event()
        first.record()
        second.record()
        self.synchronize()
        try:
            first.elapsed_time(second)
        except RuntimeError:
            return None
        return EventClock(self._timed_event, current_stream=lambda: self._library.current_stream(self._index))

    def begin_memory(self) -> None:
        """Start the first peak window. The allocator counts only this process, so the baseline is zero."""
        self._library.init()
        if self._shared_peak is None:
            self._library.reset_peak_memory_stats(self._index)

    def note_peak(self) -> None:
        """Do nothing: the allocator tracks the peak."""

    def sample_peak(self) -> None:
        """Do nothing: the allocator tracks the peak."""

    def begin_peak(self) -> int | None:
        """Start a new peak window; None too where the peaks are the script's and this one is no new one."""
        return self._read_memory().peak_allocated_bytes

    def read_memory(self) -> MemoryReading:
        """Read all statistics in one call, and start a new peak window where the peaks may be reset (see
        `harness.device.shared_peak`). Does not synchronize."""
        return self._read_memory()

    def _read_memory(self) -> MemoryReading:
        reading = reading_of(self._library.memory_stats_as_nested_dict(self._index))
        if self._shared_peak is not None:
            return self._shared_peak.since_previous(reading)
        self._library.reset_peak_memory_stats(self._index)
        return reading

    def read_allocator(self) -> AllocatorReading:
        """Return reserved memory, and what of it is in no tensor; a breakdown is unavailable."""
        reading = reading_of(self._library.memory_stats_as_nested_dict(self._index))
        if reading.reserved_bytes is None or reading.allocated_bytes is None:
            return AllocatorReading.unknown()
        free = max(0, reading.reserved_bytes - reading.allocated_bytes)
        return AllocatorReading(reading.reserved_bytes, free, None, None, None, None)

    def read_memory_info(self) -> MemoryInfo:
        """Return the driver's figures. For some integrated GPUs torch raises, because free is unavailable."""
        try:
            return MemoryInfo(*self._library.mem_get_info(self._index))
        except RuntimeError:
            return MemoryInfo(None, self.facts.memory_bytes)

    def rss_bytes(self) -> int | None:
        """The process's RSS, at most 10 ms old."""
        return self._rss.read()

    def empty_cache(self) -> None:
        """Release cached segments that are entirely free."""
        self._library.empty_cache()

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit reserved memory; exceeding the limit raises torch.OutOfMemoryError. None lifts it.
        Another limit of the process stays in effect where it is lower, and is restored when a cap is lifted.

        Raises SettingError when less than one segment of 20 MiB would remain, and DeviceError when this torch
        has no cap for XPU.
        """
        total_bytes = self.facts.memory_bytes or 0
        if cap_bytes is None or cap_bytes >= total_bytes:
            self.lift_cap_for_recovery()
            return
        if not self.facts.can_cap:
            raise DeviceError("This torch has no memory cap for Intel GPUs; leave memory_cap_gib empty.")
        if self._reserved_bytes() + SEGMENT_BYTES > cap_bytes:
            self._library.empty_cache()
        reserved_bytes = self._reserved_bytes()
        validate_cap(cap_bytes, reserved_bytes, reserved_bytes + SEGMENT_BYTES)
        self._fraction.cap(cap_bytes / total_bytes)

    def lift_cap_for_recovery(self) -> None:
        """Lift the cap, if one was set, until `cap_memory` is called again; another limit of the process is
        restored."""
        self._fraction.lift()

    def limit_bytes(self) -> int | None:
        """Return the limit of reserved memory by `set_per_process_memory_fraction`, whoever has set it. None
        without one, and with a torch that cannot tell."""
        fraction, total_bytes = self._fraction.read(), self.facts.memory_bytes
        if fraction is None or fraction >= 1.0 or total_bytes is None:
            return None
        return int(fraction * total_bytes)

    def sibling(self, index: int) -> "XpuDevice":
        """Return another GPU of the process; its peaks stay the script's."""
        return XpuDevice(xpu_facts(self._library, index), self._library, owns_peaks=False)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self._library.synchronize(self._index)

    def _reserved_bytes(self) -> int:
        return int(self._library.memory_reserved(self._index))

    def _timed_event(self) -> TimedEvent:
        event: TimedEvent = self._library.Event(enable_timing=True)
        return event


def reading_of(stats: Mapping[str, Any]) -> MemoryReading:
    """Convert `torch.xpu.memory_stats_as_nested_dict()`; all None before XPU is initialized."""
    if not stats:
        return MemoryReading(None, None, None, None, None, None, None, None)
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return MemoryReading(
        allocated["current"],
        reserved["current"],
        stats["active_bytes"]["all"]["current"],
        allocated["peak"],
        reserved["peak"],
        None,
        stats.get("num_alloc_retries"),
        stats.get("num_ooms"),
    )

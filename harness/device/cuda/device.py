"""A CUDA training device: statistics of the caching allocator, CUDA events, and a cap on reserved memory.

A run of the catalog has its own process and resets the allocator's peaks at every reading. In the process of
a script the peaks are the script's: `owns_peaks` is then False.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from harness.device.cap import ProcessFraction, validate_cap
from harness.device.cuda.allocator import has_blocks, has_statistics, read_segments
from harness.device.cuda.capture_mode import relax_captures
from harness.device.cuda.facts import cuda_facts
from harness.device.current_stream import CurrentStream
from harness.device.event_clock import EventClock
from harness.device.host.rss import RssGauge
from harness.device.protocol import AllocatorReading, DeviceClock, MemoryInfo
from harness.device.shared_peak import SharedPeak
from harness.errors import SettingError
from harness.records.run import DeviceFacts, MemoryReading

# The caching allocator's segment size for requests of 1 to 10 MiB: a cap needs at least this much headroom.
SEGMENT_BYTES = 20 << 20
_NO_CAP = (
    "memory_cap_gib has no effect on this process's allocator: it is one of the script's own, or torch's "
    "without caching (PYTORCH_NO_CUDA_MEMORY_CACHING)."
)


class CudaDevice:
    """Implements `harness.device.protocol.Device`, for one process at a time."""

    samples_peak = False
    reserves_rss = False

    def __init__(
        self,
        facts: DeviceFacts,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        *,
        owns_peaks: bool = True,
    ) -> None:
        """`owns_peaks` is whether the allocator's peak counters may be reset."""
        self.facts = facts
        self.torch_device = torch.device(facts.torch_name)
        self._index = self.torch_device.index
        self._rss = RssGauge(clock_ns)
        self._fraction = ProcessFraction(torch.cuda, self._index)
        self._has_statistics = self._has_blocks = True
        self._shared_peak = None if owns_peaks else SharedPeak()

    def activate(self) -> None:
        """Make it the calling thread's current GPU, to which kernels and events go. Otherwise a thread would
        create a context, of hundreds of megabytes, on the first GPU."""
        torch.cuda.set_device(self._index)

    def activate_in_background(self) -> None:
        """Like `activate`, and leave the thread out of captures of CUDA graphs."""
        self.activate()
        relax_captures()

    def clock(self) -> DeviceClock | None:
        """Return a clock of CUDA events on the current stream."""
        index = self._index
        stream = CurrentStream(
            lambda: torch._C._cuda_getCurrentStream(index), lambda: torch.cuda.current_stream(index)
        )
        return EventClock(_timed_event, current_stream=stream)

    def begin_memory(self) -> None:
        """Start the first peak window. The allocator counts only this process, so the baseline is zero."""
        torch.cuda.init()
        self._has_statistics, self._has_blocks = has_statistics(), has_blocks()
        if self._shared_peak is None and self._has_statistics:
            torch.cuda.reset_peak_memory_stats(self._index)

    def note_peak(self) -> None:
        """Do nothing: the allocator tracks the peak."""

    def sample_peak(self) -> None:
        """Do nothing: the allocator tracks the peak."""

    def begin_peak(self) -> int | None:
        """Start a new peak window; None too where the peaks are the script's and this one is no new one."""
        return self._read_memory().peak_allocated_bytes

    def read_memory(self) -> MemoryReading:
        """Read all statistics in one call, and start a new peak window where the peaks may be reset (see
        `harness.device.shared_peak`). Does not synchronize: the allocator runs on the CPU, and memory of
        queued work counts as allocated. All None with an allocator that counts nothing: one of the script's
        own, or torch's without caching."""
        return self._read_memory()

    def _read_memory(self) -> MemoryReading:
        if not self._has_statistics:
            return reading_of({})
        reading = reading_of(torch.cuda.memory_stats_as_nested_dict(self._index))
        if not self._has_blocks:  # cudaMallocAsync returns 0 for these.
            reading = reading._replace(inactive_split_bytes=None, alloc_retries=None, ooms=None)
        if self._shared_peak is not None:
            return self._shared_peak.since_previous(reading)
        torch.cuda.reset_peak_memory_stats(self._index)
        return reading

    def read_allocator(self) -> AllocatorReading:
        """Sum the allocator's list of segments and blocks."""
        return read_segments(self._index)

    def read_memory_info(self) -> MemoryInfo:
        """Return the driver's figures."""
        return MemoryInfo(*torch.cuda.mem_get_info(self._index))

    def rss_bytes(self) -> int | None:
        """The process's RSS, at most 10 ms old."""
        return self._rss.read()

    def empty_cache(self) -> None:
        """Release cached segments that are entirely free. Synchronizes with the device."""
        torch.cuda.empty_cache()

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit reserved memory; exceeding the limit raises torch.OutOfMemoryError. None lifts a cap that was
        set here. Another limit of the process (PYTORCH_ALLOC_CONF, or the script's) stays in effect where it
        is lower, and is restored when the cap is lifted.

        Empties the cache if it exceeds the cap. Raises SettingError when less than one segment of 20 MiB
        would remain, and with an allocator that has no limit.
        """
        if cap_bytes is None:
            self.lift_cap_for_recovery()
            return
        if not has_statistics():
            raise SettingError("memory_cap_gib", _NO_CAP)
        total_bytes = torch.cuda.mem_get_info(self._index)[1]
        if cap_bytes >= total_bytes:
            self.lift_cap_for_recovery()
            return
        if torch.cuda.memory_reserved(self._index) + SEGMENT_BYTES > cap_bytes:
            torch.cuda.empty_cache()
        reserved_bytes = torch.cuda.memory_reserved(self._index)
        validate_cap(cap_bytes, reserved_bytes, reserved_bytes + SEGMENT_BYTES)
        self._fraction.cap(cap_bytes / total_bytes)

    def lift_cap_for_recovery(self) -> None:
        """Lift the cap, if one was set, until `cap_memory` is called again; another limit of the process is
        restored."""
        self._fraction.lift()

    def limit_bytes(self) -> int | None:
        """Return the limit of reserved memory by `set_per_process_memory_fraction` or PYTORCH_ALLOC_CONF,
        whoever has set it. None without one, and with a torch that cannot tell."""
        total_bytes = self.facts.memory_bytes
        if total_bytes is None or not has_statistics():
            return None
        fraction = self._fraction.read()
        return None if fraction is None or fraction >= 1.0 else int(fraction * total_bytes)

    def sibling(self, index: int) -> "CudaDevice":
        """Return another GPU of the process; its peaks stay the script's."""
        other = CudaDevice(cuda_facts(index), owns_peaks=False)
        other._has_statistics, other._has_blocks = self._has_statistics, self._has_blocks
        return other

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize(self._index)


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def reading_of(stats: Mapping[str, Any]) -> MemoryReading:
    """Convert `torch.cuda.memory_stats_as_nested_dict()`; all None before CUDA is initialized.

    `inactive_split_bytes` does not include expandable segments.
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

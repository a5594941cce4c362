"""The CPU as a training device: memory from malloc and RSS, and an enforced memory cap.

Allocated memory is glibc's in-use bytes above the baseline at `begin_memory`: all tensors, exactly, plus
later allocations of Python and other libraries except SQLite. Reserved memory is the process's RSS. Where
malloc cannot be read (macOS, musl, another malloc), allocated and its peak are None, and trimming and the cap
are unavailable.
"""

import time
from collections.abc import Callable

import torch

from harness.device.cpu.cap import DataCap
from harness.device.cpu.facts import cpu_facts
from harness.device.cpu.heap import Heap, HeapMeter, HeapSize, heap_bytes, in_use, open_heap, share_arenas
from harness.device.cpu.sqlite_memory import open_sqlite_memory
from harness.device.host.memory import read_host_memory
from harness.device.host.process_limits import read_process_limit, read_sizes, soft_data_limit
from harness.device.host.reserve import Reserve
from harness.device.host.rss import RssGauge
from harness.device.protocol import AllocatorReading, DeviceClock, MemoryInfo
from harness.errors import DeviceError
from harness.records.memory import ProcessLimit
from harness.records.run import MemoryReading


class CpuDevice:
    """Implements `harness.device.protocol.Device`. The CPU is synchronous and needs no device clock."""

    samples_peak = True
    reserves_rss = True

    def __init__(
        self,
        heap: Heap | None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        sqlite_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """`sqlite_bytes` returns the bytes in use by SQLite."""
        self.facts = cpu_facts(heap)
        self.torch_device = torch.device("cpu")
        self._rss = RssGauge(clock_ns)
        self._heap = heap
        self._meter = None if heap is None else HeapMeter(heap)
        self._cap = DataCap(heap) if heap is not None and self.facts.can_cap else None
        self._begun_bytes = self._baseline_bytes = self._hole_bytes = 0
        self._read_sqlite_bytes, self._begun_sqlite_bytes = sqlite_bytes, 0
        self._sizes_before = read_sizes()
        self._reserve = Reserve()

    @classmethod
    def open(cls) -> "CpuDevice":
        """Open the CPU. Call this before threads are started (see `harness.device.cpu.heap.share_arenas`)."""
        share_arenas()
        device = cls(open_heap(), sqlite_bytes=open_sqlite_memory())
        # A reading before `begin_memory` must not count what was in use before the run.
        device.begin_memory()
        return device

    def activate(self) -> None:
        """Do nothing: there is one CPU."""

    def activate_in_background(self) -> None:
        """Do nothing: there is one CPU."""

    def clock(self) -> DeviceClock | None:
        """Return None: on the CPU work is synchronous."""
        return None

    def begin_memory(self) -> None:
        """Set the current in-use bytes as the baseline, which does not belong to the run."""
        self._drop_reserve()
        self._sizes_before = read_sizes()
        self._process_limit()
        if self._heap is not None and self._meter is not None:
            info = self._heap.info()
            self._begun_bytes, self._hole_bytes = in_use(info), heap_bytes(info) - in_use(info)
            self._baseline_bytes, self._begun_sqlite_bytes = self._begun_bytes, self._read_sqlite_bytes()
            self._meter.begin()
            if self._cap is not None:
                self._cap.begin()

    def heap_size(self) -> HeapSize:
        """Return the current size of malloc's heap; zero where it cannot be read."""
        if self._heap is None:
            return HeapSize()
        info = self._heap.info()
        return HeapSize(in_use(info), heap_bytes(info), self._read_sqlite_bytes())

    def leave_out(self, growth: HeapSize) -> None:
        """Count `growth`, of memory that was allocated since `begin_memory` and is not the training's, as a
        part of the baseline; negative: memory from before, as of the model, is the training's. Call this
        before there is a memory cap."""
        if self._meter is None:
            return
        # Every reading leaves out what SQLite has allocated since.
        left_out_bytes = growth.in_use_bytes - growth.sqlite_bytes
        self._begun_bytes += left_out_bytes
        self._baseline_bytes += left_out_bytes
        self._hole_bytes = max(0, self._hole_bytes + growth.total_bytes - growth.in_use_bytes)
        self._meter.raise_baseline(left_out_bytes)
        self._sizes_before = self._sizes_before.raised(growth.total_bytes)
        if self._cap is not None:
            self._cap.raise_baseline(growth.total_bytes)

    def note_peak(self) -> None:
        """Read the heap at the end of a phase (about 0.5 µs with warm caches)."""
        if self._meter is not None:
            self._meter.note()

    def sample_peak(self) -> None:
        """Read the heap from the sampler's thread, for the peaks inside long phases."""
        if self._meter is not None:
            self._meter.sample()

    def begin_peak(self) -> int | None:
        """Start a new peak window without reading the heap; return the highest value read in the one
        before."""
        return None if self._meter is None else self._meter.begin_peak()

    def read_memory(self) -> MemoryReading:
        """Read the memory of this step, in about 1 µs with warm caches (see `harness.watch.memory` for cold
        ones). The peak is a lower bound: the highest value read."""
        allocated = peak = None
        if self._meter is not None:
            self._meter.leave_out(self._sqlite_growth_bytes())
            allocated, peak = self._meter.read()
        return MemoryReading(allocated, self._rss.read(), None, peak, None, None, None, None)

    def read_allocator(self) -> AllocatorReading:
        """Return what malloc holds beyond `begin_memory`, as a cap counts it. Free chunks are not
        listed by size, so the largest is unknown. Under a limit of the process, which the script may set at
        any time, takes the reserve for a report on an out-of-memory error."""
        if self._heap is None:
            return AllocatorReading.unknown()._replace(process_limit=self._process_limit())
        info = self._heap.info()
        self._baseline_bytes = self._begun_bytes + self._sqlite_growth_bytes()
        allocated = max(0, in_use(info) - self._baseline_bytes)
        free = max(0, heap_bytes(info) - in_use(info) - self._hole_bytes)
        left = None if self._cap is None else self._cap.left_bytes()
        ends = () if self._meter is None else tuple(self._meter.forward_ends)
        reading = AllocatorReading(allocated + free, free, None, None, None, info.hblks)
        return reading._replace(
            cap_left_bytes=left, process_limit=self._process_limit(), forward_end_bytes=ends
        )

    def _sqlite_growth_bytes(self) -> int:
        """Return how much more SQLite has in use than at `begin_memory`; negative: less."""
        return self._read_sqlite_bytes() - self._begun_sqlite_bytes

    def _process_limit(self) -> ProcessLimit | None:
        """Return the limit of the process other than the cap."""
        data_limit = soft_data_limit() if self._cap is None else self._cap.uncapped_data_limit()
        limit = read_process_limit(data_limit, self._sizes_before, self._reserve)
        # A cap is lifted for the report, so it needs no reserve and does not count one.
        if limit is not None and (self._cap is None or self._cap.limit_bytes is None):
            self._reserve.hold(limit.left_bytes)
        return limit

    def read_memory_info(self) -> MemoryInfo:
        """Return the total RAM, and what is available without swapping."""
        memory = read_host_memory()
        return MemoryInfo(memory.free_bytes, memory.total_bytes)

    def rss_bytes(self) -> int | None:
        """The process's RSS, at most 10 ms old."""
        return self._rss.read()

    def empty_cache(self) -> None:
        """Trim the heap: glibc returns free pages to the system. Large tensors are mapped individually and
        returned when freed, so the effect is often small."""
        if self._heap is not None:
            self._heap.trim(0)
            self._rss.expire()

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit malloc's memory above the baseline (see `harness.device.cpu.cap`); None lifts the limit.

        Raises SettingError when less than 128 MiB of headroom would remain, and DeviceError where no cap can
        be enforced.
        """
        self._drop_reserve()
        if self._cap is None:
            if cap_bytes is not None:
                raise DeviceError(
                    "A memory cap cannot be enforced on the CPU here: it needs Linux and glibc's malloc; "
                    "leave memory_cap_gib empty."
                )
        elif cap_bytes is None:
            self._cap.lift()
            self._cap.limit_bytes = None
        else:
            self._cap.apply(cap_bytes, self._baseline_bytes)

    def lift_cap_for_recovery(self) -> None:
        """Lift the cap, and release the reserve, until `cap_memory` is called again."""
        self._reserve.release()
        if self._cap is not None:
            self._cap.lift()

    def limit_bytes(self) -> int | None:
        """Return None: see `read_allocator`."""
        return None

    def _drop_reserve(self) -> None:
        """Release the reserve until the limit is read again."""
        self._reserve.release()
        self._reserve.renew()

    def sibling(self, index: int) -> None:
        """Return None: there is one device."""

    def synchronize(self) -> None:
        """Do nothing: work is synchronous."""

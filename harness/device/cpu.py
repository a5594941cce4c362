"""The CPU as a device to train on: what malloc holds, the process's RSS beside it, and a cap that bites.

Allocated is glibc's in-use bytes above the level at `begin_memory`: the tensors to the byte, and with them
what Python and other libraries took since. Reserved is the process's RSS. Where malloc cannot be read (macOS,
musl, another malloc) allocated and its peak are None, and trimming and the cap are not offered.
"""

import time
from collections.abc import Callable

import psutil
import torch

from harness.device.cpu_cap import DataCap
from harness.device.cpu_facts import cpu_facts
from harness.device.heap import Heap, HeapMeter, held, in_use, open_heap, share_arenas
from harness.device.protocol import AllocatorReading, DeviceClock, RoomReading
from harness.device.rss import RssGauge
from harness.errors import DeviceError
from harness.records import MemoryReading


class CpuDevice:
    """Implements `harness.device.protocol.Device`. The CPU is synchronous and needs no device clock."""

    samples_peak = True

    def __init__(self, heap: Heap | None, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.facts = cpu_facts(heap)
        self.torch_device = torch.device("cpu")
        self._clock_ns = clock_ns
        self._rss = RssGauge(clock_ns)
        self._heap = heap
        self._meter = None if heap is None else HeapMeter(heap)
        self._cap = DataCap(heap) if heap is not None and self.facts.can_cap else None
        self._level_bytes = self._hole_bytes = 0

    @classmethod
    def open(cls) -> "CpuDevice":
        """This process's CPU. Call it before threads are started (see `harness.device.heap.share_arenas`)."""
        share_arenas()
        return cls(open_heap())

    def activate(self) -> None:
        """There is only one."""

    def clock(self) -> DeviceClock | None:
        """None: the CPU's own clock already tells the truth."""
        return None

    def begin_memory(self) -> None:
        """Take what is in use now as the level that does not belong to the run."""
        if self._heap is not None and self._meter is not None:
            info = self._heap.info()
            self._level_bytes, self._hole_bytes = in_use(info), held(info) - in_use(info)
            self._meter.begin()
            if self._cap is not None:
                self._cap.begin()

    def note_peak(self) -> None:
        """Look at the heap at the end of a phase (about 0.5 µs with warm caches)."""
        if self._meter is not None:
            self._meter.note()

    def sample_peak(self) -> None:
        """Look at the heap from the sampler's thread, so that the peaks inside long phases are seen too."""
        if self._meter is not None:
            self._meter.sample()

    def read_memory(self) -> MemoryReading:
        """The reading of this step, in about 1 µs with warm caches (see
        `harness.train.memory` for cold ones). The peak is a lower bound: the highest seen."""
        now_ns = self._clock_ns()
        allocated, peak = (None, None) if self._meter is None else self._meter.read(now_ns)
        return MemoryReading(allocated, self._rss.read(now_ns), None, peak, None, None, None, None)

    def read_allocator(self) -> AllocatorReading:
        """What malloc holds beyond what it held at `begin_memory`, as a cap counts it. Free chunks are not
        listed by size, so the largest is not known."""
        if self._heap is None:
            return AllocatorReading.unknown()
        info = self._heap.info()
        allocated = max(0, in_use(info) - self._level_bytes)
        free = max(0, held(info) - in_use(info) - self._hole_bytes)
        left = None if self._cap is None else self._cap.left_bytes()
        return AllocatorReading(allocated + free, free, None, None, None, info.hblks, cap_left_bytes=left)

    def read_room(self) -> RoomReading:
        """The RAM, and what of it could be had without swapping."""
        total = self.facts.memory_bytes
        available = int(psutil.virtual_memory().available)
        return RoomReading(available if total is None else min(available, total), total)

    def rss_bytes(self) -> int | None:
        """The process's RSS, at most 10 ms old."""
        return self._rss.read()

    def empty_cache(self) -> None:
        """Trim the heap: glibc gives whole free pages back to the system. Large tensors are mapped one by one
        and were given back when they were freed, so often little is left to give."""
        if self._heap is not None:
            self._heap.trim(0)
            self._rss.expire()

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit what malloc may hold above the level (see `harness.device.cpu_cap`); None lifts the limit.

        Raises SettingError when less than 128 MiB of headroom would be left, and DeviceError where no cap can
        be enforced.
        """
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
            self._cap.apply(cap_bytes, self._level_bytes)

    def lift_cap_for_recovery(self) -> None:
        """Take the cap off until `cap_memory` is called again."""
        if self._cap is not None:
            self._cap.lift()

    def synchronize(self) -> None:
        """Nothing to wait for."""

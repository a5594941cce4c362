"""A device without hardware: scripted time and memory with the real protocol, for tests and benchmarks.

The clock is the real `EventClock` over fake events. A script drives a simple model of a caching allocator.
Tensors are on the CPU. The numbers are plausible, not recorded from a GPU.
"""

import ctypes
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from harness.device.cap import validate_cap
from harness.device.cuda.device import SEGMENT_BYTES
from harness.device.event_clock import EventClock
from harness.device.protocol import AllocatorReading, DeviceClock, MemoryInfo
from harness.records.run import AmpMode, DeviceFacts, DeviceKind, MemoryReading

FAKE_FACTS = DeviceFacts(
    kind=DeviceKind.CUDA,
    ordinal=0,
    uuid="GPU-00000000-0000-0000-0000-00000000fa4e",
    name="Fake GPU",
    memory_bytes=8 << 30,
    capability=(9, 0),
    multiprocessors=132,
    power_limit_w=700.0,
    amp_modes=(AmpMode.OFF, AmpMode.BF16, AmpMode.FP16),
    can_pin=False,
    can_trim=True,
    can_cap=True,
    can_compile=False,
)


class FakeQueue:
    """A device's queue of work. Each mark is `mark_ns` of device time after the previous one; it is reached
    once `lag_marks` later marks exist, or after `finish`."""

    def __init__(self, mark_ns: int = 1_000_000, lag_marks: int = 0) -> None:
        self.mark_ns = mark_ns
        self.lag_marks = lag_marks
        self.time_ns = 0
        self.marks = 0
        # The number of waits to read a time (MPS).
        self.waits = 0
        # The current stream.
        self.stream = "stream 0"
        self._finished = 0

    def work(self, duration_ns: int) -> None:
        """Delay the next mark by `duration_ns`."""
        self.time_ns += duration_ns

    def finish(self) -> None:
        """Mark everything queued so far as reached."""
        self._finished = self.marks

    def reached(self, mark: int) -> bool:
        """Return whether the device has reached this mark."""
        return mark < self._finished or mark + self.lag_marks < self.marks

    def event(self) -> "FakeEvent":
        """Return a new event of this queue."""
        return FakeEvent(self)


class FakeEvent:
    """Behaves as `torch.cuda.Event(enable_timing=True)`."""

    def __init__(self, queue: FakeQueue) -> None:
        self._queue = queue
        self._mark: int | None = None
        self._time_ns = 0
        self.stream: Any = None

    def record(self, stream: Any = None) -> None:
        """Record the event after all queued work, on `stream` or else the current stream."""
        queue = self._queue
        self.stream = stream
        queue.time_ns += queue.mark_ns
        self._mark, self._time_ns = queue.marks, queue.time_ns
        queue.marks += 1

    def query(self) -> bool:
        """Return whether the mark is reached. An event that was never recorded counts as reached, as in
        CUDA."""
        return self._mark is None or self._queue.reached(self._mark)

    def elapsed_time(self, end_event: "FakeEvent", /) -> float:
        """Return the milliseconds between the events; raises RuntimeError unless both are reached."""
        if self._mark is None or end_event._mark is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end_event._time_ns - self._time_ns) / 1e6


class FakeSyncDebugMode:
    """The part of torch.cuda that reports synchronizing calls. `wait` is such a call, as `.item()` is: with
    the mode on it warns from C, as torch does, so that the warning has the caller's line."""

    def __init__(self) -> None:
        self.mode = 0
        self.wait: Callable[[], object] = int

    def get_sync_debug_mode(self) -> int:
        """Return 0: off, or 1: warn."""
        return self.mode

    def set_sync_debug_mode(self, debug_mode: int | str) -> None:
        """Set the mode; torch warns here that it is a prototype."""
        self.mode = int(debug_mode) if isinstance(debug_mode, int) else ("default", "warn").index(debug_mode)
        if self.mode:
            _warn(b"Synchronization debug mode is a prototype feature and does not yet detect all (fake)")
        text = b"called a synchronizing CUDA operation (Triggered internally at a fake)"
        self.wait = partial(_warn_ex, UserWarning, text, 1) if self.mode else int


_warn_ex = ctypes.PyDLL(None).PyErr_WarnEx
_warn_ex.argtypes = (ctypes.py_object, ctypes.c_char_p, ctypes.c_ssize_t)


def _warn(text: bytes) -> None:
    _warn_ex(UserWarning, text, 1)


class FakeAllocator:
    """A caching allocator that only counts bytes: requests are rounded to 512 B, the cache grows in segments
    of 2 MiB (20 MiB for requests of 1 MiB and more) and never fragments."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.limit_bytes = total_bytes
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0
        self.retries = 0
        self.ooms = 0

    def allocate(self, size_bytes: int) -> None:
        """Allocate memory; raises torch.OutOfMemoryError above the limit."""
        size = _round_up(size_bytes, 512)
        segment = SEGMENT_BYTES if size >= 1 << 20 else 2 << 20
        if self._growth(size, segment) + self.reserved_bytes > self.limit_bytes:
            self.retries += 1
            self.empty_cache()
            segment = 2 << 20
        growth = self._growth(size, segment)
        if growth + self.reserved_bytes > self.limit_bytes:
            self.ooms += 1
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. (fake device)"
            )
        self.allocated_bytes += size
        self.reserved_bytes += growth
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def free(self, size_bytes: int) -> None:
        """Free an allocation of the same size; the memory stays reserved."""
        self.allocated_bytes -= _round_up(size_bytes, 512)
        assert self.allocated_bytes >= 0, "freed more than was allocated"

    def empty_cache(self) -> None:
        """Release every segment that is entirely free."""
        self.reserved_bytes = _round_up(self.allocated_bytes, 2 << 20)

    def read(self) -> MemoryReading:
        """Return the statistics, and start a new peak window."""
        reading = MemoryReading(
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=self.reserved_bytes,
            active_bytes=self.allocated_bytes,
            peak_allocated_bytes=self.peak_allocated_bytes,
            peak_reserved_bytes=self.peak_reserved_bytes,
            inactive_split_bytes=0,
            alloc_retries=self.retries,
            ooms=self.ooms,
        )
        self.peak_allocated_bytes, self.peak_reserved_bytes = self.allocated_bytes, self.reserved_bytes
        return reading

    def breakdown(self) -> AllocatorReading:
        """Return the breakdown of its memory: no block is ever split."""
        free = self.reserved_bytes - self.allocated_bytes
        segments = -(-self.reserved_bytes // SEGMENT_BYTES)
        return AllocatorReading(self.reserved_bytes, free, 0, free, None, segments)

    def _growth(self, size: int, segment: int) -> int:
        return _round_up(max(0, self.allocated_bytes + size - self.reserved_bytes), segment)


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class FakeDevice:
    """Implements `harness.device.protocol.Device`. `script`, when given, is called at the end of each step
    with the allocator and the number of the step (from 1) and plays what the step allocated and freed;
    `siblings` are the other GPUs of the process."""

    def __init__(
        self,
        facts: DeviceFacts = FAKE_FACTS,
        queue: FakeQueue | None = None,
        script: Callable[[FakeAllocator, int], None] | None = None,
        siblings: Mapping[int, "FakeDevice"] | None = None,
    ) -> None:
        self.facts = facts
        self.siblings = siblings or {}
        self.torch_device = torch.device("cpu")
        self.queue = queue if queue is not None else FakeQueue()
        self.allocator = FakeAllocator(facts.memory_bytes or 8 << 30)
        self._script = script
        self._steps = 0

    samples_peak = False
    reserves_rss = False

    def activate(self) -> None:
        """Do nothing: there is one device."""

    def activate_in_background(self) -> None:
        """Do nothing: there is one device."""

    def clock(self) -> DeviceClock | None:
        """Return the real event clock, over the fake queue; the CPU has none."""
        if self.facts.kind is DeviceKind.CPU:
            return None
        return EventClock(self.queue.event, current_stream=lambda: self.queue.stream)

    def begin_memory(self) -> None:
        """Start the first peak window."""
        self.allocator.read()

    def note_peak(self) -> None:
        """Do nothing: the allocator tracks the peak."""

    def sample_peak(self) -> None:
        """Do nothing: the allocator tracks the peak."""

    def begin_peak(self) -> int | None:
        """Start a new peak window."""
        return self.allocator.read().peak_allocated_bytes

    def read_memory(self) -> MemoryReading:
        """Play the script's next step and read the allocator."""
        self._steps += 1
        if self._script is not None:
            self._script(self.allocator, self._steps)
        return self.allocator.read()

    def read_allocator(self) -> AllocatorReading:
        """Return the fake allocator's breakdown."""
        return self.allocator.breakdown()

    def read_memory_info(self) -> MemoryInfo:
        """Return all that the fake allocator has not reserved as free."""
        total = self.allocator.total_bytes
        return MemoryInfo(total - self.allocator.reserved_bytes, total)

    def rss_bytes(self) -> int | None:
        """Return None: not measured."""
        return None

    def empty_cache(self) -> None:
        """Empty the fake cache."""
        self.allocator.empty_cache()

    def cap_memory(self, cap_bytes: int | None) -> None:
        """Limit the reserved memory, by the same rule as CUDA."""
        if cap_bytes is None or cap_bytes >= self.allocator.total_bytes:
            self.lift_cap_for_recovery()
            return
        if self.allocator.reserved_bytes + SEGMENT_BYTES > cap_bytes:
            self.allocator.empty_cache()
        reserved_bytes = self.allocator.reserved_bytes
        validate_cap(cap_bytes, reserved_bytes, reserved_bytes + SEGMENT_BYTES)
        self.allocator.limit_bytes = cap_bytes

    def lift_cap_for_recovery(self) -> None:
        """Lift the cap."""
        self.allocator.limit_bytes = self.allocator.total_bytes

    def limit_bytes(self) -> int | None:
        """Return the limit in effect."""
        limit_bytes = self.allocator.limit_bytes
        return None if limit_bytes >= self.allocator.total_bytes else limit_bytes

    def sibling(self, index: int) -> "FakeDevice | None":
        """Return that of `siblings`."""
        return self.siblings.get(index)

    def synchronize(self) -> None:
        """Finish all queued work."""
        self.queue.finish()

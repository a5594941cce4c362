"""How many steps are left until memory runs out: what the limit counts, how fast that grows, what is left.

A limit rarely counts what leaks. On a GPU it counts what the allocator reserves; before it gives up, the
allocator returns the segments that are wholly free. What stays are the *pinned* segments, those with a live
block in them, and what a step needs beside them. A leak that leaves the rest of each segment unused pins
more than it takes. On the CPU a cap counts all data of the process: live objects, the holes between them and
what lies outside the heap; so a leak of live objects that leaves holes behind it runs out earlier than its
own slope says, and one that fills holes later. Whether holes that grow leave room for the next step depends
on what it needs: where that is not known, nothing is said about them.
"""

from collections import deque
from typing import NamedTuple

from harness.analysis.leak.growth import DOUBTFUL_Z, GrowthJudge
from harness.analysis.leak.trend import Trend
from harness.records.memory import LeakSeries, LeakVerdict
from harness.records.run import StepRow

FOLLOWS = 0.5
"""On the CPU, what the limit counts follows a leak when it grows by at least this share of the leak's slope;
below, the leak is served from memory that is held already."""
_RISING = frozenset({LeakVerdict.WATCH, LeakVerdict.LEAK})
_READINGS = 8
"""Of the heap, about a second's: the least that was left in them is what is left at a step's peak."""


class Limits(NamedTuple):
    """How far memory can grow; None where it is not known. `device_bytes` is the most the allocator may
    reserve, `device_free_bytes` what the device itself has left now, whoever took the rest, and
    `host_free_bytes` what the machine has left now."""

    device_bytes: int | None = None
    host_free_bytes: int | None = None
    device_free_bytes: int | None = None


NO_LIMITS = Limits()


class Headroom:
    """What one run has left. Takes readings as they come; a reading that lacks a figure leaves the one before
    in place, since memory does not go away with it."""

    def __init__(self, *, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self._counted = GrowthJudge()
        self._reserved_bytes: int | None = None
        self._pinned_bytes = 0
        self._passing_bytes = 0
        self._is_peak_known = False
        self._cap_left: deque[int] = deque(maxlen=_READINGS)
        self._heap_free: deque[int] = deque(maxlen=_READINGS)

    def restart(self) -> None:
        """Forget everything: what is held and what the limit is may be another amount from here on."""
        Headroom.__init__(self, on_cpu=self._on_cpu)

    def take(self, row: StepRow) -> None:
        """Take the row of a settled step."""
        self._is_peak_known = row.peak_allocated_bytes is not None
        if row.peak_allocated_bytes is not None and row.allocated_bytes is not None:
            passing_bytes = row.peak_allocated_bytes - row.allocated_bytes
            self._passing_bytes = max(self._passing_bytes, passing_bytes)
        if self._on_cpu:
            self._counted.add(row.step, row.rss_bytes)
        elif row.reserved_bytes is not None:
            self._reserved_bytes = row.reserved_bytes
            self._pinned_bytes = pinned_bytes(row) or row.reserved_bytes
            self._counted.add(row.step, self._pinned_bytes)

    def take_heap(self, heap_free_bytes: int | None, cap_left_bytes: int | None) -> None:
        """Take what lies free in the CPU's heap, and what a cap leaves beside it."""
        if heap_free_bytes is not None:
            self._heap_free.append(heap_free_bytes)
        if cap_left_bytes is not None:
            self._cap_left.append(cap_left_bytes)

    def steps_left(self, series: LeakSeries, leak: Trend, limits: Limits) -> int | None:
        """Steps until memory runs out while `series` grows as `leak` says; None without a limit."""
        if leak.slope <= 0:
            return None
        if series is LeakSeries.WORKERS or (series is LeakSeries.HOST and not self._on_cpu):
            return _steps(limits.host_free_bytes, leak.slope)
        counted = self._counted.judge().trend
        rate = counted.slope if counted is not None and counted.z > DOUBTFUL_Z else 0.0
        if not self._on_cpu:
            return _steps(self._left_on_gpu(limits), max(rate, leak.slope))
        left_bytes = _least(limits.host_free_bytes, min(self._cap_left, default=None))
        if left_bytes is None:
            return None
        follows = rate >= FOLLOWS * leak.slope
        if series is LeakSeries.FRAGMENTATION:
            # Holes serve neither their own growth nor, for certain, the next step.
            is_known = follows and self._counted.judge().verdict in _RISING and self._is_peak_known
            return _steps(max(0, left_bytes - self._passing_bytes), rate) if is_known else None
        if follows:
            return _steps(left_bytes, rate)
        return _steps(left_bytes + min(self._heap_free, default=0), leak.slope)

    def _left_on_gpu(self, limits: Limits) -> int | None:
        """What can still be taken from the device, and what the allocator holds beyond what it needs."""
        if self._reserved_bytes is None:
            return None
        device_bytes = limits.device_bytes
        under_cap = None if device_bytes is None else device_bytes - self._reserved_bytes
        left_bytes = _least(under_cap, limits.device_free_bytes)
        if left_bytes is None:
            return None
        return left_bytes + max(0, self._reserved_bytes - self._pinned_bytes - self._passing_bytes)


def pinned_bytes(row: StepRow) -> int | None:
    """What the allocator cannot return between two steps: blocks in use, and the free rest of the segments
    they lie in; None where that is not known."""
    if row.active_bytes is None or row.inactive_split_bytes is None:
        return None
    return row.active_bytes + row.inactive_split_bytes


def _least(*sizes: int | None) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


def _steps(left_bytes: int | None, rate: float) -> int | None:
    return None if left_bytes is None else max(0, int(left_bytes / rate))

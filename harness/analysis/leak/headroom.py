"""How many steps are left until memory runs out: what the limit counts, how fast that grows, what is left.

A limit rarely counts what leaks. On a GPU it counts what the allocator reserves, most of which a leak cannot
use, since it lies in pieces. On the CPU a cap counts all data of the process: live objects, the holes between
them and what lies outside the heap; so a leak of live objects that leaves holes behind it runs out earlier
than its own slope says, and one that fills holes later.
"""

from collections import deque
from typing import NamedTuple

from harness.analysis.leak.growth import DOUBTFUL_Z, GrowthJudge
from harness.analysis.leak.trend import Trend
from harness.memory_records import LeakSeries
from harness.records import StepRow

FOLLOWS = 0.5
"""What the limit counts follows a leak when it grows by at least this share of the leak's slope; below, the
leak is served from memory that is held already."""
LOST_SHARE = 0.6
"""Of what a GPU's allocator has reserved beyond a step's peak, so much is never used by a leak before a cap
is reached: it lies in pieces that do not fit. Fitted to `tests.bench.oom_time_series`, seeds 5 to 7;
`python -m tests.bench oom-time` says how well it does with others."""
_PEAKS = 32
"""The highest peak of so many readings is what a step needs where batches differ."""
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
        self._held = GrowthJudge()
        self._reserved_bytes: int | None = None
        self._peaks: deque[int] = deque(maxlen=_PEAKS)
        self._cap_left: deque[int] = deque(maxlen=_READINGS)
        self._heap_free: deque[int] = deque(maxlen=_READINGS)

    def restart(self) -> None:
        """Forget everything: what is held and what the limit is may be another amount from here on."""
        Headroom.__init__(self, on_cpu=self._on_cpu)

    def take(self, row: StepRow) -> None:
        """Take the row of a settled step."""
        self._held.add(row.step, row.rss_bytes if self._on_cpu else None)
        if row.reserved_bytes is not None:
            self._reserved_bytes = row.reserved_bytes
        peak_bytes = row.allocated_bytes if row.peak_allocated_bytes is None else row.peak_allocated_bytes
        if peak_bytes is not None:
            self._peaks.append(peak_bytes)

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
        left_bytes = self._left_bytes(limits)
        if left_bytes is None:
            return None
        held = self._held.judge().trend if self._on_cpu else None
        if held is not None and held.z > DOUBTFUL_Z and held.slope >= FOLLOWS * leak.slope:
            return _steps(left_bytes, held.slope)
        return _steps(left_bytes + self._spare_bytes(series), leak.slope)

    def _left_bytes(self, limits: Limits) -> int | None:
        """What can still be taken from the system."""
        if self._on_cpu:
            rooms = [limits.host_free_bytes, min(self._cap_left, default=None)]
        elif self._reserved_bytes is None:
            return None
        else:
            device_bytes = limits.device_bytes
            rooms = [
                None if device_bytes is None else device_bytes - self._reserved_bytes,
                limits.device_free_bytes,
            ]
        return min((room for room in rooms if room is not None), default=None)

    def _spare_bytes(self, series: LeakSeries) -> int:
        """What is held already and can serve the leak: holes cannot serve their own growth."""
        if series is LeakSeries.FRAGMENTATION:
            return 0
        if self._on_cpu:
            return min(self._heap_free, default=0)
        if self._reserved_bytes is None or not self._peaks:
            return 0
        return round((1 - LOST_SHARE) * max(0, self._reserved_bytes - max(self._peaks)))


def _steps(room_bytes: int | None, slope: float) -> int | None:
    return None if room_bytes is None else max(0, int(room_bytes / slope))

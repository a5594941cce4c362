"""Estimate of the steps left until memory runs out.

The limit rarely covers exactly the memory that leaks. On a GPU it covers reserved memory; before failing, the
allocator releases the segments that are wholly free. What remains are the *pinned* segments, those with a
live block, and the transient memory of a step. A leak that leaves the rest of each segment unused pins more
than it allocates. On the CPU a cap covers all data of the process: live objects, the holes between them and
memory outside the heap. So a leak of live objects that leaves holes behind reaches the limit earlier than its
slope implies, and one that fills holes reaches it later. Whether growing holes leave enough memory for the
next step depends on its size: if that is unknown, no estimate is made for them. A tensor that is replaced by
larger ones exists twice while it is copied: peaks grow twice as fast as memory between two steps. Where
inputs grow, what is left falls faster than any of it (`harness.analysis.leak.approach`).
"""

from collections import deque
from typing import NamedTuple

from harness.analysis.leak.approach import Approach
from harness.analysis.leak.growth import DOUBTFUL_Z, RISING, GrowthJudge
from harness.analysis.leak.trend import Trend
from harness.records.memory import LeakSeries
from harness.records.run import StepRow

# On the CPU, the memory under the limit follows a leak if it grows by at least this share of the leak's
# slope; below, the leak uses memory that the process already has.
FOLLOWS = 0.5
# On the CPU no steps are stated if the ends of the rate's interval differ from it by more than this factor:
# the heap settles meanwhile, and the process grows by it. Statements are to be within the same factor: beyond
# it what the limit covers grows at a rate of its own.
CERTAIN = 1.5
# Readings of the heap, about a second's: their minimum is the free memory at a step's peak.
_READINGS = 8


class Limits(NamedTuple):
    """Limits of memory growth; None if unknown. `device_bytes` is the maximum the allocator may reserve,
    `device_free_bytes` the free memory of the device, and `host_free_bytes` that of the machine, or what the
    process's control groups leave of it. `workers_left_bytes` is what the loader's workers, if they grow
    alike, can take together until one of them reaches a limit of its process."""

    device_bytes: int | None = None
    host_free_bytes: int | None = None
    device_free_bytes: int | None = None
    workers_left_bytes: int | None = None


NO_LIMITS = Limits()


class Copy(NamedTuple):
    """A tensor that steps copy to a larger one: its size now, and its growth in bytes per step."""

    size_bytes: int
    slope: float


NO_COPY = Copy(0, 0.0)


class Headroom:
    """The memory left to one run, from its latest readings. A reading without a figure keeps the previous
    one.

    Attributes:
        transient_bytes: the largest transient memory of a step so far.
    """

    def __init__(self, *, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self._counted = GrowthJudge()
        self._approach = Approach()
        self._reserved_bytes: int | None = None
        self._pinned_bytes = 0
        self.transient_bytes = 0
        self._has_peak = False
        self._allocated_bytes: int | None = None
        self._data_bytes: int | None = None
        self._cap_left: deque[int] = deque(maxlen=_READINGS)
        self._heap_free: deque[int] = deque(maxlen=_READINGS)

    def restart(self) -> None:
        """Discard all readings: the baseline and the limit may have changed."""
        Headroom.__init__(self, on_cpu=self._on_cpu)

    def add_step(self, row: StepRow) -> None:
        """Add the row of a steady-state step."""
        self._has_peak = row.peak_allocated_bytes is not None
        if row.allocated_bytes is not None:
            self._allocated_bytes = row.allocated_bytes
        if row.peak_allocated_bytes is not None and row.allocated_bytes is not None:
            transient_bytes = row.peak_allocated_bytes - row.allocated_bytes
            self.transient_bytes = max(self.transient_bytes, transient_bytes)
        if self._on_cpu:
            self._counted.add(row.step, row.rss_bytes)
        elif row.reserved_bytes is not None:
            self._reserved_bytes = row.reserved_bytes
            self._pinned_bytes = pinned_bytes(row) or row.reserved_bytes
            self._counted.add(row.step, self._pinned_bytes)

    def add_heap(
        self,
        step: int,
        heap_free_bytes: int | None,
        cap_left_bytes: int | None,
        data_bytes: int | None = None,
    ) -> None:
        """Add the free memory in the CPU's heap, and that outside it under a cap or a process's limit.
        `data_bytes` is the live memory at that moment plus `cap_left_bytes`, negated."""
        self._data_bytes = data_bytes
        if heap_free_bytes is not None:
            self._heap_free.append(heap_free_bytes)
        if cap_left_bytes is not None:
            self._cap_left.append(cap_left_bytes)
            self._approach.add(step, cap_left_bytes)
        elif heap_free_bytes is not None:
            # The script has removed the limit.
            self._cap_left.clear()
            self._approach.restart()

    def steps_left(
        self,
        series: LeakSeries,
        leak: Trend,
        limits: Limits,
        copy: Copy = NO_COPY,
        *,
        inputs_grow: bool = False,
    ) -> int | None:
        """Return the steps until memory runs out if `series` grows at the rate of `leak`, and the transient
        memory of steps as `copy`; None without a limit. `inputs_grow`: steps need more and more."""
        if leak.slope <= 0:
            return None
        if series is LeakSeries.WORKERS or (series is LeakSeries.HOST and not self._on_cpu):
            own_bytes = limits.workers_left_bytes if series is LeakSeries.WORKERS else None
            return _steps(_least(limits.host_free_bytes, own_bytes), leak.slope)
        counted = self._counted.judge().trend
        rate = counted.slope if counted is not None and counted.z > DOUBTFUL_Z else 0.0
        if not self._on_cpu:
            return _steps(self._left_on_gpu(limits), max(rate, leak.slope) + copy.slope)
        left_bytes = _least(limits.host_free_bytes, min(self._cap_left, default=None))
        if left_bytes is None:
            return None
        if inputs_grow and self._cap_left and left_bytes == min(self._cap_left):
            return self._approach.steps_left(left_bytes)
        if copy.slope:
            between_bytes = _least(limits.host_free_bytes, self._left_between_steps()) or 0
            left_bytes = max(0, between_bytes - copy.size_bytes)
        follows = rate >= FOLLOWS * leak.slope
        if not _is_certain(counted if follows and counted is not None else leak):
            return None
        if series is LeakSeries.FRAGMENTATION:
            # Holes serve neither their own growth nor, for certain, the next step.
            is_predictable = follows and self._counted.judge().verdict in RISING and self._has_peak
            return _steps(max(0, left_bytes - self.transient_bytes), rate) if is_predictable else None
        if follows:
            # At the limit what leaks goes on in the holes, as far as it fits there.
            return _steps(left_bytes, rate + copy.slope) or (None if min(self._heap_free, default=0) else 0)
        return _steps(left_bytes + min(self._heap_free, default=0), leak.slope + copy.slope)

    def faster_slope(self, series: LeakSeries, slope: float) -> float | None:
        """Return the growth of what the limit of `series` covers, in bytes per step, if it is faster than
        `slope`, that of the series, by more than the factor `CERTAIN`; None otherwise."""
        if series is LeakSeries.WORKERS or (series is LeakSeries.HOST and not self._on_cpu):
            return None
        counted = self._counted.judge().trend
        is_faster = counted is not None and counted.z > DOUBTFUL_Z and counted.slope > CERTAIN * slope
        return counted.slope if counted is not None and is_faster else None

    @property
    def has_cap(self) -> bool:
        """Whether a cap, or a limit of the process, was read on the CPU."""
        return bool(self._cap_left)

    def _left_between_steps(self) -> int | None:
        """Return the memory left under a cap between two steps. It is mostly read in the middle of a step: a
        thread that waits for the interpreter's lock gets it in a long operation, such as a copy."""
        if not self._cap_left or self._data_bytes is None or self._allocated_bytes is None:
            return max(self._cap_left, default=None)
        return -self._data_bytes - self._allocated_bytes

    def _left_on_gpu(self, limits: Limits) -> int | None:
        """Return the memory available from the device, plus reserved memory beyond a step's needs."""
        if self._reserved_bytes is None:
            return None
        device_bytes = limits.device_bytes
        under_cap = None if device_bytes is None else device_bytes - self._reserved_bytes
        left_bytes = _least(under_cap, limits.device_free_bytes)
        if left_bytes is None:
            return None
        return left_bytes + max(0, self._reserved_bytes - self._pinned_bytes - self.transient_bytes)


def _is_certain(rate: Trend) -> bool:
    """Return whether a rate is known within `CERTAIN`; the steps left would else be a guess."""
    return rate.low * CERTAIN >= rate.slope > 0 and rate.high <= CERTAIN * rate.slope


def pinned_bytes(row: StepRow) -> int | None:
    """Return the bytes the allocator cannot release between two steps: active blocks, and the free rest of
    their segments; None if unknown."""
    if row.active_bytes is None or row.inactive_split_bytes is None:
        return None
    return row.active_bytes + row.inactive_split_bytes


def _least(*sizes: int | None) -> int | None:
    return min((size for size in sizes if size is not None), default=None)


def _steps(left_bytes: int | None, rate: float) -> int | None:
    return None if left_bytes is None else max(0, int(left_bytes / rate))

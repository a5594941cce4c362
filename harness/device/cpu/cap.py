"""A memory cap on the CPU: a limit on the process's data (RLIMIT_DATA), which makes malloc fail.

The limit counts what malloc takes from the system, so the cap covers malloc's whole heap beyond its size at
`CpuDevice.begin_memory`: in use and free. That is stricter than "allocated" and corresponds to CUDA, where
the cap counts reserved memory; under a cap malloc retains little free memory (see
`harness.device.cpu.heap.separate_large_blocks`). Set the cap after the warm-up: with less than about 100 MB
of headroom Python itself may fail to allocate and abort, so less than 128 MiB is rejected.
"""

import resource

from harness.device.cap import CPU_HEADROOM_BYTES, validate_cap
from harness.device.cpu.heap import Heap, heap_bytes, in_use, separate_large_blocks
from harness.device.host.process_limits import soft_data_limit
from harness.device.host.rss import status_bytes
from harness.errors import DeviceError

# A heap may exceed the cap by this much: a cap that was lifted for an out-of-memory error must be accepted
# again, and by then thread stacks and the interpreter's arenas have changed the total a little.
SLACK_BYTES = 64 << 20


class DataCap:
    """The soft RLIMIT_DATA of this process. Raising it again needs no privilege: the hard limit is unchanged.
    The script may set limits of its own at any time: they are never replaced by a looser one.

    Attributes:
        limit_bytes: the newest limit, also while it is lifted; None: there is no cap.
    """

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        # The soft limit that the cap set, and the one that it replaced; None while no cap is set.
        self._applied: int | None = None
        self._replaced = resource.RLIM_INFINITY
        self.limit_bytes: int | None = None
        self._baseline_bytes = 0

    def begin(self) -> None:
        """Set the current size of the heap as the baseline, which the cap does not count."""
        self._baseline_bytes = heap_bytes(self._heap.info())

    def raise_baseline(self, by_bytes: int) -> None:
        """Raise the baseline by so many bytes. Call this before there is a cap."""
        self._baseline_bytes += by_bytes

    def apply(self, cap_bytes: int, in_use_baseline_bytes: int) -> None:
        """Limit the heap to `cap_bytes` beyond the baseline, at which `in_use_baseline_bytes` were in use.

        Trims the heap first, so that free memory that can be returned does not count. Raises SettingError,
        changing nothing, when less than 128 MiB would remain or when the heap, which shrinks only from its
        end, is already larger.
        """
        separate_large_blocks()
        self._heap.trim(0)
        info = self._heap.info()
        reserved_bytes = max(0, heap_bytes(info) - self._baseline_bytes)
        smallest_bytes = max(
            in_use(info) - in_use_baseline_bytes + CPU_HEADROOM_BYTES, reserved_bytes - SLACK_BYTES
        )
        validate_cap(cap_bytes, reserved_bytes, smallest_bytes, "Python and its libraries")
        data_bytes = status_bytes("VmData")
        if data_bytes is None:
            raise DeviceError("A memory cap cannot be set: /proc/self/status does not show the data size.")
        self.limit_bytes = data_bytes - reserved_bytes + cap_bytes
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft != self._applied:
            self._replaced = soft
        self._applied = _tightest(self.limit_bytes, self._replaced, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (self._applied, hard))

    def lift(self) -> None:
        """Restore the limit that the cap replaced. A limit that the script has set since then stays."""
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if soft == self._applied:
            resource.setrlimit(resource.RLIMIT_DATA, (_tightest(self._replaced, hard), hard))
        self._applied = None

    def uncapped_data_limit(self) -> int:
        """Return the soft RLIMIT_DATA that is in effect without the cap, or RLIM_INFINITY."""
        soft = soft_data_limit()
        return self._replaced if soft == self._applied else soft

    def left_bytes(self) -> int | None:
        """Return the bytes that remain under the newest cap, lifted or not; negative when the process has
        exceeded it since. None without a cap."""
        if self.limit_bytes is None:
            return None
        data_bytes = status_bytes("VmData")
        return None if data_bytes is None else self.limit_bytes - data_bytes


def _tightest(*limits: int) -> int:
    """Return the lowest of `limits` of a process, of which each may be RLIM_INFINITY."""
    finite = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    return min(finite, default=resource.RLIM_INFINITY)

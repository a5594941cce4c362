"""A memory cap on the CPU: a limit on the process's data (RLIMIT_DATA), which malloc runs into for real.

The limit counts what malloc takes from the system, so the cap stands for everything malloc *holds* above the
level at `CpuDevice.begin_memory`: what is handed out and what lies free in its heaps. That is stricter than
"allocated" and mirrors CUDA, where the cap counts reserved memory. Set it when the run is warm: with less
than about 100 MB of headroom Python itself may fail to allocate and abort, so less than 128 MiB is refused.
"""

import math
import resource

from harness.device.heap import Heap, held
from harness.device.rss import status_bytes
from harness.errors import SettingError

HEADROOM_BYTES = 128 << 20
_SETTING = "memory_cap_gib"


class DataCap:
    """The soft RLIMIT_DATA of this process. Raising it back needs no privilege: the hard limit stays."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._original = resource.getrlimit(resource.RLIMIT_DATA)[0]

    def apply(self, cap_bytes: int, level_bytes: int) -> None:
        """Let malloc hold at most `cap_bytes` above `level_bytes`. Trims the heap first, so that what is only
        kept does not count. Raises SettingError, changing nothing, when the headroom would be too small."""
        self._heap.trim(0)
        above = max(0, held(self._heap.info()) - level_bytes)
        smallest = above + HEADROOM_BYTES
        if cap_bytes < smallest:
            raise SettingError(
                _SETTING,
                f"{_SETTING} cannot be {_gib(cap_bytes)}: the run already holds {_gib(above)} and needs "
                f"{HEADROOM_BYTES >> 20} MiB of room; the smallest cap that works now is {_gib(smallest)}.",
            )
        data_bytes = status_bytes("VmData")
        if data_bytes is None:
            raise SettingError(_SETTING, f"{_SETTING} cannot be set here: /proc does not show the data size.")
        self._set(data_bytes - above + cap_bytes)

    def lift(self) -> None:
        """Take the cap off."""
        self._set(self._original)

    def _set(self, limit: int) -> None:
        if self._original != resource.RLIM_INFINITY:
            limit = min(limit, self._original)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _gib(size_bytes: int) -> str:
    """Rounded up, so that the number, typed in again, is accepted."""
    return f"{math.ceil(size_bytes / 2**30 * 1000) / 1000:.3f}"

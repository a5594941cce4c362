"""A memory cap on the CPU: a limit on the process's data (RLIMIT_DATA), which malloc runs into for real.

The limit counts what malloc takes from the system, so the cap stands for everything malloc *holds* above the
level at `CpuDevice.begin_memory`: what is handed out and what lies free in its heaps. That is stricter than
"allocated" and mirrors CUDA, where the cap counts reserved memory. Set it when the run is warm: with less
than about 100 MB of headroom Python itself may fail to allocate and abort, so less than 128 MiB is refused.
"""

import resource

from harness.device.cap import require_room
from harness.device.heap import Heap, held
from harness.device.rss import status_bytes
from harness.errors import DeviceError

HEADROOM_BYTES = 128 << 20


class DataCap:
    """The soft RLIMIT_DATA of this process. Raising it back needs no privilege: the hard limit stays."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._original = resource.getrlimit(resource.RLIMIT_DATA)[0]

    def apply(self, cap_bytes: int, level_bytes: int) -> None:
        """Let malloc hold at most `cap_bytes` above `level_bytes`. Trims the heap first, so that what is only
        kept does not count. Raises SettingError, changing nothing, when the headroom would be too small."""
        self._heap.trim(0)
        above_bytes = max(0, held(self._heap.info()) - level_bytes)
        require_room(cap_bytes, above_bytes, HEADROOM_BYTES)
        data_bytes = status_bytes("VmData")
        if data_bytes is None:
            raise DeviceError("A memory cap cannot be set: /proc/self/status does not show the data size.")
        self._set(data_bytes - above_bytes + cap_bytes)

    def lift(self) -> None:
        """Take the cap off."""
        self._set(self._original)

    def _set(self, limit: int) -> None:
        if self._original != resource.RLIM_INFINITY and limit != resource.RLIM_INFINITY:
            limit = min(limit, self._original)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))

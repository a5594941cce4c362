"""A memory cap on the CPU: a limit on the process's data (RLIMIT_DATA), which malloc runs into for real.

The limit counts what malloc takes from the system, so the cap stands for everything malloc *holds* beyond
what it held at `CpuDevice.begin_memory`: what is handed out and what lies free in its heaps. That is stricter
than "allocated" and mirrors CUDA, where the cap counts reserved memory; a run that starts with one has malloc
keep little that is free (see `harness.device.heap.separate_large_blocks`). Set it when the run is warm: with
less than about 100 MB of headroom Python itself may fail to allocate and abort, so less than 128 MiB is
refused.
"""

import resource

from harness.device.cap import require_room
from harness.device.heap import Heap, held, in_use, separate_large_blocks
from harness.device.rss import status_bytes
from harness.errors import DeviceError

# Above what is handed out; what lies free in the heap serves as well.
HEADROOM_BYTES = 128 << 20
# A heap this much over the cap is let be: a cap that was lifted for an out-of-memory error must be accepted
# again, and by then thread stacks and the interpreter's arenas have shifted the balance a little.
SLACK_BYTES = 64 << 20


class DataCap:
    """The soft RLIMIT_DATA of this process. Raising it back needs no privilege: the hard limit stays.

    Attributes:
        limit_bytes: the newest limit, which stays known while it is lifted; None: there is no cap.
    """

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._original = resource.getrlimit(resource.RLIMIT_DATA)[0]
        self.limit_bytes: int | None = None
        self._baseline_bytes = 0

    def begin(self) -> None:
        """Take what malloc holds now as what a cap does not count."""
        self._baseline_bytes = held(self._heap.info())

    def apply(self, cap_bytes: int, level_bytes: int) -> None:
        """Let malloc hold at most `cap_bytes` beyond the baseline; `level_bytes` were in use then. Trims the
        heap first, so that what is only kept does not count where it can be given back. Raises SettingError,
        changing nothing, when less than 128 MiB would be left or when the heap, which shrinks only from its
        end, is larger already."""
        separate_large_blocks()
        self._heap.trim(0)
        info = self._heap.info()
        held_bytes = max(0, held(info) - self._baseline_bytes)
        smallest_bytes = max(in_use(info) - level_bytes + HEADROOM_BYTES, held_bytes - SLACK_BYTES)
        require_room(cap_bytes, held_bytes, smallest_bytes)
        data_bytes = status_bytes("VmData")
        if data_bytes is None:
            raise DeviceError("A memory cap cannot be set: /proc/self/status does not show the data size.")
        self.limit_bytes = data_bytes - held_bytes + cap_bytes
        self._set(self.limit_bytes)

    def lift(self) -> None:
        """Take the cap off."""
        self._set(self._original)

    def left_bytes(self) -> int | None:
        """How much more the kernel lets the process take under the newest cap, lifted or not; below zero
        where it has taken more since. None without a cap."""
        if self.limit_bytes is None:
            return None
        data_bytes = status_bytes("VmData")
        return None if data_bytes is None else self.limit_bytes - data_bytes

    def _set(self, limit: int) -> None:
        if self._original != resource.RLIM_INFINITY and limit != resource.RLIM_INFINITY:
            limit = min(limit, self._original)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))

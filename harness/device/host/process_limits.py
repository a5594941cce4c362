"""Limits on the memory of a process that the system enforces: RLIMIT_DATA and RLIMIT_AS (Linux).

The shell sets them with `ulimit -d` and `ulimit -v`, and a script may change its own at any time, so they are
read anew whenever they are needed.
"""

import re
import resource
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from harness.device.host.reserve import RESERVE_BYTES, Reserve
from harness.device.host.rss import status_bytes
from harness.records.memory import ProcessLimit

_ADDRESS_SPACE = "ulimit -v"
# glibc sets aside this much address space for each arena but the first, at a multiple of the same size.
_ARENA_BYTES = 64 << 20
# In /proc/self/maps: begin and end of a mapping without permissions and without a file.
_INACCESSIBLE = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) ---p 0+ 00:00 0\s*$", re.MULTILINE)


class ProcessSizes(NamedTuple):
    """Sizes of this process that the limits cover, in bytes; None where /proc/self/status is missing."""

    # Private writable memory: the heap, Python's pools, stacks, libraries' own mappings. RLIMIT_DATA covers
    # it.
    data_bytes: int | None
    # The whole address space, libraries and mapped files included, without what malloc has set aside.
    # RLIMIT_AS covers it.
    address_space_bytes: int | None

    def raised(self, by_bytes: int) -> "ProcessSizes":
        """Return the sizes with so many bytes of data more."""
        return ProcessSizes(*(None if size is None else size + by_bytes for size in self))


def read_sizes() -> ProcessSizes:
    """Return the current sizes."""
    address_space_bytes = status_bytes("VmSize")
    if address_space_bytes is not None:
        address_space_bytes -= set_aside_by_malloc()
    return ProcessSizes(status_bytes("VmData"), address_space_bytes)


def soft_data_limit() -> int:
    """Return the soft RLIMIT_DATA in bytes, or RLIM_INFINITY."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def read_process_limit(
    data_limit_bytes: int, before: ProcessSizes, reserve: Reserve | None = None
) -> ProcessLimit | None:
    """Return the limit that leaves the least memory; None without one. `data_limit_bytes` stands for the soft
    RLIMIT_DATA, which a memory cap may have replaced, and `before` has the sizes at the baseline. What is
    left of a `reserve` that was released for a report counts as used: the run did not have it."""
    address_space_limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = []
    for option, limit_bytes, field, before_bytes in (
        ("ulimit -d", data_limit_bytes, "VmData", before.data_bytes),
        (_ADDRESS_SPACE, address_space_limit, "VmSize", before.address_space_bytes),
    ):
        if limit_bytes == resource.RLIM_INFINITY:
            continue
        used_bytes = status_bytes(field)
        if used_bytes is not None:
            reserve_bytes = 0 if reserve is None else reserve.held_bytes
            if reserve is not None and reserve.is_released:
                reserve_bytes = max(0, min(RESERVE_BYTES, limit_bytes - used_bytes))
                used_bytes += reserve_bytes
            # What is set aside is not writable, and RLIMIT_DATA counts writable memory alone.
            set_aside_bytes = set_aside_by_malloc() if option == _ADDRESS_SPACE else 0
            sizes = (limit_bytes, used_bytes, before_bytes or 0, reserve_bytes, set_aside_bytes)
            limits.append(ProcessLimit(option, *sizes))
    return min(limits, key=lambda limit: limit.available_bytes, default=None)


def left_to_all(pids: Iterable[int]) -> int | None:
    """Return the bytes that the processes `pids`, if they grow alike, can take together until the first of
    them reaches a limit of its own; None where none has a limit (Linux; elsewhere always)."""
    pids = list(pids)
    left = [left_bytes for pid in pids if (left_bytes := _left_to(pid)) is not None]
    return max(0, min(left)) * len(pids) if left else None


def _left_to(pid: int) -> int | None:
    """Return the bytes that its limits leave to the process `pid`; None without a limit, or if it is gone."""
    if sys.platform != "linux":
        return None
    folder, left = Path(f"/proc/{pid}"), []
    try:
        data_limit, address_space_limit = (
            resource.prlimit(pid, kind)[0] for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)
        )
    except OSError:
        return None
    if data_limit != resource.RLIM_INFINITY and (used := status_bytes("VmData", folder / "status")):
        left.append(data_limit - used)
    if address_space_limit != resource.RLIM_INFINITY and (used := status_bytes("VmSize", folder / "status")):
        left.append(address_space_limit - used + set_aside_by_malloc(folder / "maps"))
    return min(left, default=None)


def set_aside_by_malloc(maps: Path = Path("/proc/self/maps")) -> int:
    """Return the bytes of address space that glibc's arenas have set aside and not used yet: the inaccessible
    rest of each heap of an arena, as far as `maps` shows it."""
    try:
        text = maps.read_bytes()
    except OSError:
        return 0
    places = ((int(begin, 16), int(end, 16)) for begin, end in _INACCESSIBLE.findall(text))
    return sum(end - begin for begin, end in places if end % _ARENA_BYTES == 0 and end - begin < _ARENA_BYTES)

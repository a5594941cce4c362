"""The memory that this process can use: that of the machine, or what its control groups leave of it, as in
containers and batch jobs."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.device.host.control_groups import group_files, read_numbers

# In memory.stat: pages of files, which the kernel can reclaim; in version 1 with those of the groups below.
_FILE_PAGES = ("inactive_file", "active_file")
_FILE_PAGES_IN_V1 = tuple(f"total_{name}" for name in _FILE_PAGES)


class HostMemory(NamedTuple):
    """The memory that this process can use, and how much of it is available without swapping."""

    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        """Return what is in use by all processes, as far as it counts against the total."""
        return self.total_bytes - self.free_bytes


class MemoryGroups:
    """The memory limits of the control groups of this process and of their ancestors, version 1 or 2."""

    def __init__(self, root: Path = Path("/")) -> None:
        """`root` is the file system's root (a folder in tests)."""
        self._limit_files = group_files("memory", "memory.max", "memory.limit_in_bytes", root)

    def read(self, machine: HostMemory) -> HostMemory:
        """Return the memory of `machine` that the limits permit to use."""
        total_bytes, free_bytes = machine
        for path in self._limit_files:
            limit_bytes = _number(path)
            if limit_bytes is None or limit_bytes >= machine.total_bytes:
                continue
            total_bytes = min(total_bytes, limit_bytes)
            if (used_bytes := _used_bytes(path.parent)) is not None:
                free_bytes = min(free_bytes, max(0, limit_bytes - used_bytes))
        return HostMemory(total_bytes, min(free_bytes, total_bytes))


_own_groups = cache(MemoryGroups)


def read_host_memory() -> HostMemory:
    """Return the memory that this process can use now."""
    ram = psutil.virtual_memory()
    return _own_groups().read(HostMemory(int(ram.total), int(ram.available)))


def _used_bytes(group: Path) -> int | None:
    """Return the memory in use by a control group, without pages of files, which the kernel can reclaim, as
    the machine's available memory counts them."""
    used = next(filter(None, map(_number, (group / "memory.current", group / "memory.usage_in_bytes"))), None)
    if used is None:
        return None
    try:
        lines = (group / "memory.stat").read_text().splitlines()
        stat = {name: int(value) for name, value in map(str.split, lines)}
    except (OSError, ValueError):
        return used
    names = _FILE_PAGES_IN_V1 if _FILE_PAGES_IN_V1[0] in stat else _FILE_PAGES
    return max(0, used - sum(stat.get(name, 0) for name in names))


def _number(path: Path) -> int | None:
    numbers = read_numbers(path)
    return None if numbers is None else numbers[0]

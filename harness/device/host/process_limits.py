"""Limits on the memory of this process that the system enforces: RLIMIT_DATA and RLIMIT_AS (Linux).

The shell sets them with `ulimit -d` and `ulimit -v`, and a script may change its own at any time, so they are
read anew whenever they are needed.
"""

import resource
from typing import NamedTuple

from harness.device.host.reserve import RESERVE_BYTES, Reserve
from harness.device.host.rss import status_bytes
from harness.records.memory import ProcessLimit


class ProcessSizes(NamedTuple):
    """Sizes of this process that the limits cover, in bytes; None where /proc/self/status is missing."""

    # Private writable memory: the heap, Python's pools, stacks, libraries' own mappings. RLIMIT_DATA covers
    # it.
    data_bytes: int | None
    # The whole address space, libraries and mapped files included. RLIMIT_AS covers it.
    address_space_bytes: int | None


def read_sizes() -> ProcessSizes:
    """Return the current sizes."""
    return ProcessSizes(status_bytes("VmData"), status_bytes("VmSize"))


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
        ("ulimit -v", address_space_limit, "VmSize", before.address_space_bytes),
    ):
        if limit_bytes == resource.RLIM_INFINITY:
            continue
        used_bytes = status_bytes(field)
        if used_bytes is not None:
            reserve_bytes = 0 if reserve is None else reserve.held_bytes
            if reserve is not None and reserve.is_released:
                reserve_bytes = max(0, min(RESERVE_BYTES, limit_bytes - used_bytes))
                used_bytes += reserve_bytes
            limits.append(ProcessLimit(option, limit_bytes, used_bytes, before_bytes or 0, reserve_bytes))
    return min(limits, key=lambda limit: limit.left_bytes, default=None)

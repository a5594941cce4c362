"""What an out-of-memory error says in numbers. The texts are those of torch 2.6 to 2.13, glibc and numpy.

AMD's and Intel's GPUs say the same as CUDA; Apple's wrote KB, MB and GB for powers of 1,024 once.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from harness.records.run import DeviceKind

_UNITS = {"bytes": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = r"([0-9]+(?:\.[0-9]+)?) (bytes|K|M|G)(?:i?B)?"
_ASKED = re.compile(rf"(?:[Tt]ried|Unable) to allocate {_SIZE}")
# "capacty" is torch 2.1's; the second form is torch 1's.
_TOTAL = re.compile(rf"total capaci?ty of {_SIZE}")
_OLD_TOTAL = re.compile(rf"{_SIZE} total capacity")
_FREE = re.compile(rf"of which {_SIZE} is free")
_OLD_FREE = re.compile(rf"; {_SIZE} free")
_PROCESS = re.compile(rf"this process has {_SIZE} memory in use")
_LISTED = re.compile(rf"Process [0-9]+ has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_WORKER = re.compile(r"DataLoader worker (?:process|\(pid)")

MIB = 2**20
SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES = 2 * MIB, 20 * MIB
"""What CUDA's caching allocator takes at once for requests up to 1 MiB, and below 10 MiB."""


# The share of its reserved memory that a process is listed with at least; the rest is rounding.
_LISTED_SHARE = 0.98
# NVML's "not available" is 2^64 - 1, which torch prints as 17179869184.00 GiB.
_NO_SIZE_BYTES = 2**62
# Sizes are printed with two decimals, so that a full card may be listed with a little more than its total.
_TOTAL_SLACK = 1.01


class ErrorNumbers(NamedTuple):
    """The sizes in an error's text, in bytes; None where it does not say. `total_bytes` and `free_bytes` are
    the device's, `process_bytes` what this process holds of it, `others_bytes` what others do."""

    asked_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    process_bytes: int | None
    others_bytes: int | None


def read_error(text: str, reserved_bytes: int | None = None) -> ErrorNumbers:
    """The numbers in an error's text. A size above the device's total is none.

    `reserved_bytes` is what the allocator held when it failed; it is used where the text does not say it.
    """
    total_bytes = _first(_TOTAL, text) or _first(_OLD_TOTAL, text)
    free_bytes = _first(_FREE, text)
    if free_bytes is None:
        free_bytes = _first(_OLD_FREE, text)
    process_bytes, others_bytes = _processes(text, total_bytes, reserved_bytes)
    return ErrorNumbers(
        _possible(_first(_ASKED, text), None),
        total_bytes,
        _possible(free_bytes, total_bytes),
        process_bytes,
        others_bytes,
    )


def own_size(listed_bytes: Sequence[int], reserved_bytes: int | None) -> int | None:
    """Which of the sizes that a driver lists for the processes on a device is that of the process whose
    allocator holds `reserved_bytes`; None where that is open.

    For a process in a container the driver lists the host's process numbers, so that it cannot find itself by
    its own. A process is listed with what its allocator reserved and its context: the smallest size that has
    room for the first is taken, which is off by less than a context. One that is listed alone is it, too.
    """
    if len(listed_bytes) == 1:
        return listed_bytes[0]
    if reserved_bytes is None:
        return None
    return min((size for size in listed_bytes if size >= _LISTED_SHARE * reserved_bytes), default=None)


def _processes(
    text: str, total_bytes: int | None, reserved_bytes: int | None
) -> tuple[int | None, int | None]:
    """What this process holds, and what others do. Where the text lists more than one process and none of
    them as this one, others are named only when this one is found among them."""
    sizes = [_possible(_bytes(*match), total_bytes) for match in _LISTED.findall(text)]
    listed = [size for size in sizes if size is not None]
    is_whole = len(listed) == len(sizes)
    if _PROCESS.search(text):
        own = _possible(_first(_PROCESS, text), total_bytes)
        return own, sum(listed) if listed and is_whole else None
    allocated, unallocated = _first(_ALLOCATED, text), _first(_UNALLOCATED, text)
    if allocated is not None:
        reserved_bytes = allocated + (unallocated or 0)
    own = own_size(listed, reserved_bytes) if is_whole else None
    if own is None:
        return None, None
    return own, sum(listed) - own if len(listed) > 1 else None


def _possible(size_bytes: int | None, total_bytes: int | None) -> int | None:
    most_bytes = _NO_SIZE_BYTES if total_bytes is None else total_bytes * _TOTAL_SLACK
    return None if size_bytes is None or size_bytes > most_bytes else size_bytes


def is_from_worker(text: str) -> bool:
    """Whether the error was raised in a worker of the data loader."""
    return _WORKER.search(text) is not None


def tensor_bytes(error_bytes: int, device: DeviceKind) -> tuple[int, int]:
    """The least and the most that a tensor can have asked for when the error says `error_bytes`.

    On CUDA that is the segment that was asked of the driver (`get_allocation_size` in
    c10/cuda/CUDACachingAllocator.cpp): requests above 10 MiB are rounded up to 2 MiB. XPU's allocator does
    the same.
    """
    if device not in (DeviceKind.CUDA, DeviceKind.XPU):
        return error_bytes, error_bytes
    if error_bytes == SMALL_SEGMENT_BYTES:
        return 1, MIB
    if error_bytes == LARGE_SEGMENT_BYTES:
        return MIB, 10 * MIB
    return max(1, error_bytes - SMALL_SEGMENT_BYTES), error_bytes


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return None if found is None else _bytes(found[1], found[2])


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit]) if "." in number else int(number) * _UNITS[unit]

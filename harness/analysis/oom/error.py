"""What an out-of-memory error says in numbers. The texts are those of torch 2.6 to 2.13, glibc and numpy.

AMD's and Intel's GPUs say the same as CUDA; Apple's wrote KB, MB and GB for powers of 1,024 once.
"""

import re
from typing import NamedTuple

from harness.records import DeviceKind

_UNITS = {"bytes": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = r"([0-9]+(?:\.[0-9]+)?) (bytes|K|M|G)(?:i?B)?"
_ASKED = re.compile(rf"(?:[Tt]ried|Unable) to allocate {_SIZE}")
_TOTAL = re.compile(rf"total capacity of {_SIZE}")
_FREE = re.compile(rf"of which {_SIZE} is free")
_PROCESS = re.compile(rf"this process has {_SIZE} memory in use")
_OTHERS = re.compile(rf"Process [0-9]+ has {_SIZE} memory in use")
_WORKER = re.compile(r"DataLoader worker (?:process|\(pid)")

MIB = 2**20
SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES = 2 * MIB, 20 * MIB
"""What CUDA's caching allocator takes at once for requests up to 1 MiB, and below 10 MiB."""


class ErrorNumbers(NamedTuple):
    """The sizes in an error's text, in bytes; None where it does not say. `total_bytes` and `free_bytes` are
    the device's, `process_bytes` what this process holds of it, `others_bytes` what others do."""

    asked_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    process_bytes: int | None
    others_bytes: int | None


def read_error(text: str) -> ErrorNumbers:
    """The numbers in an error's text."""
    others = [_bytes(*found) for found in _OTHERS.findall(text)]
    return ErrorNumbers(
        _first(_ASKED, text),
        _first(_TOTAL, text),
        _first(_FREE, text),
        _first(_PROCESS, text),
        sum(others) if others else None,
    )


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

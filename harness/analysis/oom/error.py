"""Parser for the text of out-of-memory errors: torch 1.0 to 2.14, glibc, numpy and other libraries.

Messages for AMD's and Intel's GPUs match CUDA's; older ones for Apple's use KB, MB and GB for powers of
1,024.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from harness.records.run import DeviceKind

_UNITS = {"bytes": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}
# numpy ends a size of three digits with the point: "512. KiB" (`_size_to_string` in its _exceptions.py). XLA
# and Paddle leave out the space, and CuPy groups the digits: "2,147,483,648 bytes".
_SIZE = r"([0-9][0-9,]{0,25}(?:\.[0-9]{0,9})?) ?(bytes|[KMGTPE])(?:i?B)?"
# "Invalid buffer size" is Metal's error for a request above its largest buffer, "Requested size" TensorRT's,
# "Requested" that of torch's cudaMallocAsync backend, "calloc" NCCL's; the last two are faiss's.
_REQUESTED = re.compile(
    r"(?:(?:[Tt]ried|trying|Unable|[Ff]ailed) to allocate(?: request for)?|unable to mmap"
    r"|Invalid buffer size:|Out of memory allocating|(?:Cannot|Could not) allocate(?: tensor with)?"
    r"|Failed to CUDA calloc(?: async)?"
    r"|Requested (?:amount of (?:GPU )?memory \(|size was )|^Requested +:"
    rf"|[Ff]ailed to cudaMalloc|alloc fail type .{{1,200}} size) ?{_SIZE}",
    re.MULTILINE,
)
# Without a unit: NCCL's segments of shared memory, Gaudi's, Paddle's on the CPU, and Arrow's.
_REQUESTED_BYTES = re.compile(
    r"(?:shared memory segment \S{1,400} \(size |Allocation failed for size::|\bAlloc "
    r"|\b(?:m|re)alloc of size )([0-9]+)"
)
# "capacty" is torch 2.1's; the second form is torch 1's.
_TOTAL = re.compile(rf"total capaci?ty of {_SIZE}")
_OLD_TOTAL = re.compile(rf"{_SIZE} total capacity")
# torch's number of the device; the second form is torch 1's.
_INDEX = re.compile(
    r"\bGPU ([0-9]+)(?: has a total|; [0-9.]+ [KMGTPE]i?B total)|Allocation on device ([0-9]+) would exceed"
)
_FREE = re.compile(rf"(?:of which|available memory is only) {_SIZE}")
# The lines of the cudaMallocAsync backend (c10/cuda/CUDAMallocAsyncAllocator.cpp).
_ASYNC_TOTAL = re.compile(rf"^Device limit +: {_SIZE}", re.MULTILINE)
_ASYNC_FREE = re.compile(rf"^Free \(according to CUDA\): {_SIZE}", re.MULTILINE)
_ASYNC_ALLOWED = re.compile(
    rf"^PyTorch limit \(set by user-supplied memory fraction\)\s+: {_SIZE}", re.MULTILINE
)
_OLD_FREE = re.compile(rf"; {_SIZE} free")
_PROCESS = re.compile(rf"this process has {_SIZE} memory in use")
_LISTED = re.compile(rf"Process [0-9]+ has {_SIZE} memory in use")
_ALLOCATED = re.compile(rf"{_SIZE} is allocated by PyTorch")
_UNALLOCATED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
# Of a fraction of the device set in the process: CUDA's and XPU's form, and Metal's, which always has one.
_ALLOWED = re.compile(rf"{_SIZE} allowed;")
_METAL_ALLOWED = re.compile(rf"max allowed: {_SIZE}")
# Texts of allocators of the host's memory: torch's, numpy's, Python's, C++'s and those of the libraries. The
# words of the C library for ENOMEM are in those of mappings, Rust's libraries and LMDB.
_HOST = re.compile(
    r"DefaultCPUAllocator|Unable to allocate .+ for an array|\b_?(?:Array|Arrow)?MemoryError\b"
    r"|\b(?:m|re)alloc of size [0-9]+ failed|Cannot allocate memory|\ACould not allocate \w+ object!"
    # Thrust's has the GPU's code or a buffer behind it, RMM's the place in its allocators of the GPU.
    r"|std::bad_alloc(?!: (?:out_of_memory: )?(?:CUDA|RMM|(?:cuda|hip)Error|temporary_buffer::))"
    r"|in function '?(?:cv::)?OutOfMemoryError|posix_memalign\("
    r"|unable to (?:mmap|allocate shared memory)|_OUT_OF_HOST_MEMORY|_HOST_ALLOCATION_FAILED|\[Errno 12\]"
)
# Of /dev/shm. posix_fallocate returns its error and leaves errno alone, so that torch prints "Success (0)" or
# any older code (aten/src/ATen/MapAllocator.cpp); before that call it wrote the last byte of the file.
# shm_open and NCCL's segments (its misc/shmutils.cc) fail with ENOSPC.
_SHARED_MEMORY = re.compile(
    r"unable to allocate shared memory\(shm\) for file"
    r"|unable to write to file </torch_[^>]{0,200}>(?:: No space left on device \(28\)|$|\s)"
    r"|unable to open shared memory object <[^>]{0,400}> in \S+ mode: No space left on device \(28\)"
    r"|Error while creating shared memory segment \S+ \(size \d+\), error: No space left on device \(28\)"
)
# NCCL 2.21, of torch 2.6, leaves out the code; the other cause, a missing permission, is rare.
_NO_REASON = re.compile(r"Error while creating shared memory segment \S+ \(size \d+\)(?!, error)")
# The handler of torch/utils/data/_utils/signal_handling.py: a page of a file that found no space in /dev/shm.
_BUS_ERROR = re.compile(r"DataLoader worker \(pid \S+ is killed by signal: Bus error")
# Torch's, with and without the handler of signals, and that of the catalog's loop.
_KILLED_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\) [\d, ]+\) exited unexpectedly| \d+\) is killed by signal: Killed)"
    r"|Loader worker \d+ was killed by signal 9"
)
_GPU = re.compile(r"OutOfMemoryError|\b(?:CUDA|HIP|XPU|MPS)\b")
_WORKER = re.compile(r"DataLoader worker (?:process|\(pid)")

MIB = 2**20
# Segment sizes of CUDA's caching allocator for requests up to 1 MiB, and below 10 MiB.
SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES = 2 * MIB, 20 * MIB


# The share of its reserved memory that a process is listed with at least; the rest is rounding.
_LISTED_SHARE = 0.98
# NVML's "not available" is 2^64 - 1, which torch prints as 17179869184.00 GiB.
_NO_SIZE_BYTES = 2**62
# Sizes are printed with two decimals, so that a full card may be listed with a little more than its total.
_TOTAL_SLACK = 1.01


# Characters at each end of an error's text that are read: a compiler's error may hold a whole program, and a
# text may have a megabyte.
_MOST_CHARACTERS = 20_000


class ErrorNumbers(NamedTuple):
    """Sizes in the text of an error, in bytes; None if absent. `total_bytes` and `free_bytes` are those of
    the device, `process_bytes` and `others_bytes` the memory of this process and of other processes."""

    requested_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    process_bytes: int | None
    others_bytes: int | None


def read_error(text: str, reserved_bytes: int | None = None) -> ErrorNumbers:
    """Read the numbers in the text of an error. A size above the device's total is ignored.

    `reserved_bytes` is the allocator's reserved memory at the failure, used if the text does not state it.
    """
    text = excerpt(text)
    total_bytes = _first((_TOTAL, _OLD_TOTAL, _ASYNC_TOTAL), text)
    free_bytes = _first((_FREE, _OLD_FREE, _ASYNC_FREE), text)
    process_bytes, others_bytes = _processes(text, total_bytes, reserved_bytes)
    return ErrorNumbers(
        _possible(_requested(text), None),
        total_bytes,
        _possible(free_bytes, total_bytes),
        process_bytes,
        others_bytes,
    )


def excerpt(text: str) -> str:
    """Return the part of an error's text that is read: all of it, or both ends of a very long one."""
    if len(text) <= 2 * _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]}\n{text[-_MOST_CHARACTERS:]}"


def own_size(listed_bytes: Sequence[int], reserved_bytes: int | None) -> int | None:
    """Return the size, among those a driver lists for the processes on a device, of the process with
    `reserved_bytes` reserved; None if ambiguous.

    In a container the driver lists the host's process ids, so a process cannot identify itself by its own.
    The listed size is the process's reserved memory plus its context: the smallest size not below the
    reserved memory is used, with an error smaller than a context. A single listed process is this one.
    """
    if len(listed_bytes) == 1:
        return listed_bytes[0]
    if reserved_bytes is None:
        return None
    return min((size for size in listed_bytes if size >= _LISTED_SHARE * reserved_bytes), default=None)


def _processes(
    text: str, total_bytes: int | None, reserved_bytes: int | None
) -> tuple[int | None, int | None]:
    """Return the memory of this process and of other processes. If the text lists several processes and marks
    none as this one, the size of the others is known only if this one can be identified."""
    sizes = [_possible(_bytes(*match), total_bytes) for match in _LISTED.findall(text)]
    listed = [size for size in sizes if size is not None]
    is_whole = len(listed) == len(sizes)
    if _PROCESS.search(text):
        own = _possible(_first((_PROCESS,), text), total_bytes)
        return own, sum(listed) if listed and is_whole else None
    allocated, unallocated = _first((_ALLOCATED,), text), _first((_UNALLOCATED,), text)
    if allocated is not None:
        reserved_bytes = allocated + (unallocated or 0)
    own = own_size(listed, reserved_bytes) if is_whole else None
    if own is None:
        return None, None
    return own, sum(listed) - own if len(listed) > 1 else None


def _possible(size_bytes: int | None, total_bytes: int | None) -> int | None:
    most_bytes = _NO_SIZE_BYTES if total_bytes is None else total_bytes * _TOTAL_SLACK
    return None if size_bytes is None or size_bytes > most_bytes else size_bytes


def allowed_bytes(text: str) -> int | None:
    """Return the limit that the process has set for its own memory on the device; None if not in the text."""
    return _possible(_first((_ALLOWED, _METAL_ALLOWED, _ASYNC_ALLOWED), excerpt(text)), None)


def gpu_index(text: str) -> int | None:
    """Return torch's number of the GPU that refused the request; None if not in the text."""
    match = _INDEX.search(excerpt(text))
    return None if match is None else int(match[1] or match[2])


def is_of_host(text: str, *, is_worker: bool = False) -> bool:
    """Return whether the error is about the host's memory. The text of a worker's error (`is_worker`) may
    name no allocator; workers seldom use a GPU."""
    text = excerpt(text)
    return (
        _HOST.search(text) is not None
        or is_of_shared_memory(text)
        or (is_worker and _GPU.search(text) is None)
    )


def is_of_shared_memory(text: str) -> bool:
    """Return whether the error is about the host's shared memory, /dev/shm."""
    return _SHARED_MEMORY.search(excerpt(text)) is not None or is_likely_of_shared_memory(text)


def is_likely_of_shared_memory(text: str) -> bool:
    """Return whether the error most likely is about /dev/shm, without a code that says so: a bus error that
    killed a loader worker, or a segment that NCCL could not create."""
    return _BUS_ERROR.search(text) is not None or _NO_REASON.search(excerpt(text)) is not None


def is_of_killed_worker(text: str) -> bool:
    """Return whether a loader's worker was killed, or may have been."""
    return _KILLED_WORKER.search(text) is not None


def is_from_worker(text: str) -> bool:
    """Return whether the error was raised in a worker of the data loader."""
    return _WORKER.search(text) is not None


def tensor_bytes(error_bytes: int, device: DeviceKind) -> tuple[int, int]:
    """Return the smallest and largest tensor size consistent with `error_bytes`, the size in the error.

    On CUDA the error states the size of the segment requested from the driver (`get_allocation_size` in
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


def _requested(text: str) -> int | None:
    size_bytes = _first((_REQUESTED,), text)
    if size_bytes is not None:
        return size_bytes
    match = _REQUESTED_BYTES.search(text)
    return None if match is None else int(match[1])


def _first(patterns: Sequence[re.Pattern[str]], text: str) -> int | None:
    """Return the size that the first of the patterns which matches finds in the text."""
    match = next((match for pattern in patterns if (match := pattern.search(text)) is not None), None)
    return None if match is None else _bytes(match[1], match[2])


def _bytes(number: str, unit: str) -> int:
    digits = number.replace(",", "")
    return int(float(digits) * _UNITS[unit]) if "." in digits else int(digits) * _UNITS[unit]

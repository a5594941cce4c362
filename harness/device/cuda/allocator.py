"""Sums over the CUDA allocator's list of segments and blocks."""

import inspect
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from harness.device.protocol import AllocatorReading

NATIVE, PLUGGABLE = "native", "pluggable"
_IN_USE = "active_allocated"
# Freed, but another stream may still read it; torch versions differ in the name.
_WAITING = ("active_pending_free", "active_awaiting_free")

# With "1" in one of these torch takes each tensor from the driver, and counts nothing. It ignores other
# values (`forceUncachedAllocator` in c10/cuda/CUDACachingAllocator.cpp, `check_env` in c10/util/env.cpp).
_UNCACHED = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")

Segment = Mapping[str, Any]


def backend() -> str:
    """Return the allocator's name: "native", "cudaMallocAsync", which has neither a list of its blocks nor a
    history, or "pluggable", which has no statistics either."""
    return torch.cuda.get_allocator_backend() if torch.cuda.is_initialized() else NATIVE


def has_statistics(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the allocator counts its memory: neither one of the script's own does, nor torch's
    without caching."""
    return backend() != PLUGGABLE and all(environ.get(name) != "1" for name in _UNCACHED)


def has_blocks() -> bool:
    """Return whether the allocator has a list of its blocks, and a history."""
    return backend() == NATIVE and has_statistics()


def read_segments(device_index: int) -> AllocatorReading:
    """Return the reading of one GPU; every field is None when there is no list, or it is too expensive.

    Building the list takes 0.2 to a few milliseconds. Before torch 2.11 it includes the allocation history,
    if one is recorded, which takes most of a second: then it is skipped.
    """
    if not (torch.cuda.is_initialized() and has_blocks()):
        return AllocatorReading.unknown()
    if "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters:
        segments = torch.cuda.memory_snapshot(include_traces=False)
    elif torch._C._cuda_isHistoryEnabled():
        return AllocatorReading.unknown()
    else:
        segments = torch.cuda.memory_snapshot()
    return add_up(segment for segment in segments if segment["device"] == device_index)


def add_up(segments: Iterable[Segment]) -> AllocatorReading:
    """Sum the segments of one device, in the format of `torch.cuda.memory_snapshot`.

    A free block is a split remainder when another block of its segment is in use. Parts of an expandable
    segment are unmapped one by one, so its free blocks count as entirely free. Free blocks of a private pool
    (CUDA graphs, torch.cuda.MemPool) are counted separately, because other allocations cannot use them.
    """
    reserved = free = split = largest = blocks = private = waiting = number = 0
    for segment in segments:
        number += 1
        reserved += segment["total_size"]
        whole = segment["active_size"] == 0 or bool(segment.get("is_expandable"))
        pool = tuple(segment.get("segment_pool_id", (0, 0)))
        for block in segment["blocks"]:
            size, state = block["size"], block["state"]
            if state == _IN_USE:
                blocks += 1
            elif state in _WAITING:
                waiting += size
            elif pool != (0, 0):
                private += size
            else:
                free, split = (free + size, split) if whole else (free, split + size)
                largest = max(largest, size)
    return AllocatorReading(reserved, free, split, largest, blocks, number, private, waiting)

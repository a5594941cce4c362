"""What the CUDA allocator's own list of segments and blocks says, added up."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from harness.device.protocol import AllocatorReading

_IN_USE = "active_allocated"
# Freed, but another stream may still read it; two names for one state.
_WAITING = ("active_pending_free", "active_awaiting_free")

Segment = Mapping[str, Any]


def read_segments(device_index: int) -> AllocatorReading:
    """The reading of one GPU; every field None where the list cannot be had cheaply.

    Building the list takes 0.2 to a few milliseconds. Before torch 2.11 it comes with the whole history of
    allocations where one is kept, which takes most of a second: then it is left out.
    """
    if not torch.cuda.is_initialized():
        return AllocatorReading.unknown()
    if "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters:
        segments = torch.cuda.memory_snapshot(include_traces=False)
    elif torch._C._cuda_isHistoryEnabled():
        return AllocatorReading.unknown()
    else:
        segments = torch.cuda.memory_snapshot()
    return add_up(segment for segment in segments if segment["device"] == device_index)


def add_up(segments: Iterable[Segment]) -> AllocatorReading:
    """The reading in the segments of one device, as `torch.cuda.memory_snapshot` lists them.

    A free block is a split remainder when something else in its segment is still in use; parts of an
    expandable segment are unmapped one by one, so its free blocks count as wholly free. Free blocks of a
    private pool (CUDA graphs) serve nobody else: they count as the pool's and as nothing else.
    """
    reserved = free = split = largest = blocks = private = waiting = counted = 0
    for segment in segments:
        counted += 1
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
    return AllocatorReading(reserved, free, split, largest, blocks, counted, private, waiting)

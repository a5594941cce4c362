"""Blocks in the result of `torch.cuda.memory._snapshot`, live or from a file. Pure.

That function documents the structure: segments with blocks, and for each device a trace of allocations and
frees.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from harness.errors import StepscopeError
from harness.tracking.frames import Frames, StackFrame, reduce_stack, shorten
from harness.tracking.tracked_blocks import TrackedBlock

_ALLOCATED = "active_allocated"
_ROUND = 512
# The most blocks that are read, and the most events, the newest ones.
_MOST = 2_000_000


class SnapshotFormatError(StepscopeError):
    """The data is not a snapshot of an allocator."""


class TracedBlock(TrackedBlock):
    """A block of an allocator, with the wall times of its allocation and free if the trace has them."""

    __slots__ = ("born_us", "died_us")
    born_us: int | None
    died_us: int | None


def traced_blocks(snapshot: Mapping[str, Any], device: int, since_us: int = 0) -> list[TracedBlock]:
    """Return every block that is live at the end or in the trace since `since_us`, in no order.

    A block that is older than the trace is `born` at 0; an event's moment is its position in the trace from
    1. Raises SnapshotFormatError when the structure is invalid.
    """
    try:
        return _traced_blocks(snapshot, device, since_us)
    except KeyError as error:
        raise SnapshotFormatError(
            f"This is no memory snapshot of PyTorch: a part of it has no {str(error)[:80]}."
        ) from None
    except (TypeError, ValueError, AttributeError):
        raise SnapshotFormatError(
            "This is no memory snapshot of PyTorch: a part of it is of another kind than belongs there."
        ) from None


def check(snapshot: object) -> Mapping[str, Any]:
    """Return `snapshot` if it has the outline of a snapshot; else raise SnapshotFormatError. The list that
    `torch.cuda.memory_snapshot` returns has the segments alone."""
    if isinstance(snapshot, list) and snapshot:
        snapshot = {"segments": snapshot}
    if not isinstance(snapshot, dict):
        raise SnapshotFormatError("This is no memory snapshot of PyTorch: it is no dict.")
    for segment in _items(snapshot, "segments"):
        if not isinstance(segment, dict) or not isinstance(segment.get("blocks"), list):
            raise SnapshotFormatError("This is no memory snapshot of PyTorch: a segment has no blocks.")
        for field in ("address", "total_size"):
            number(segment.get(field))
    for trace in _items(snapshot, "device_traces", optional=True):
        if not isinstance(trace, list):
            raise SnapshotFormatError("This is no memory snapshot of PyTorch: a trace is no list.")
    return snapshot


def devices(snapshot: Mapping[str, Any]) -> list[int]:
    """Return the devices with memory in a snapshot."""
    return sorted({number(segment.get("device", 0)) for segment in _items(snapshot, "segments")})


def reserved_bytes(snapshot: Mapping[str, Any], device: int) -> int:
    """Return the allocator's reserved memory."""
    segments = _items(snapshot, "segments")
    return sum(number(s["total_size"]) for s in segments if number(s.get("device", 0)) == device)


def event_count(snapshot: Mapping[str, Any]) -> int:
    """Return the number of events in the traces of all devices."""
    return sum(len(trace) for trace in _items(snapshot, "device_traces", optional=True))


def number(value: object) -> int:
    """Return an integer in the range of addresses, sizes and lines; else raise SnapshotFormatError."""
    if type(value) is not int or not 0 <= value < 2**64:
        # Only the type of nested values, whose text can have any length.
        text = repr(value)[:80] if isinstance(value, str | float | bool) else f"a {type(value).__name__}"
        raise SnapshotFormatError(
            f"This is no memory snapshot of PyTorch: {text} stands where a size or an address belongs."
        )
    return value


def _traced_blocks(snapshot: Mapping[str, Any], device: int, since_us: int) -> list[TracedBlock]:
    stacks = _Stacks()
    alive = {block.address: block for block in _alive(snapshot, device, stacks)}
    traces = _items(snapshot, "device_traces", optional=True)
    trace = traces[device] if device < len(traces) else []
    blocks = list(alive.values())
    for place in range(len(trace), max(0, len(trace) - _MOST), -1):
        entry = trace[place - 1]
        if since_us and (_time(entry) or since_us) < since_us:
            break
        match entry["action"]:
            case "alloc":
                block = alive.pop(number(entry["addr"]), None)
                if block is not None:
                    block.born, block.born_us = place, _time(entry)
                    block.stack = stacks.of(entry.get("frames", ())) or block.stack
            case "free_requested":
                block = _new_block(number(entry["addr"]), -(-number(entry["size"]) // _ROUND) * _ROUND, ())
                block.died, block.died_us = place, _time(entry)
                alive[block.address] = block
                blocks.append(block)
    return blocks


def _alive(snapshot: Mapping[str, Any], device: int, stacks: "_Stacks") -> Iterator[TracedBlock]:
    count = 0
    for segment in _items(snapshot, "segments"):
        if number(segment.get("device", 0)) != device:
            continue
        address = number(segment["address"])
        for block in segment["blocks"]:
            size = number(block["size"])
            if block["state"] == _ALLOCATED:
                yield _new_block(number(block.get("address", address)), size, stacks.of(_entries(block)))
            address += size
            count += 1
            if count > _MOST:
                raise SnapshotFormatError(f"This snapshot has more than {_MOST:,} blocks; it is not read.")


def _entries(block: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """Return the stack of a block; before torch 2.1 it is that of the newest entry of the block's history."""
    history = block.get("history")
    owner = block if "frames" in block or not history else history[0]
    frames: Iterable[Mapping[str, Any]] = owner.get("frames", ())
    return frames


def _new_block(address: int, size_bytes: int, stack: Frames) -> TracedBlock:
    block = TracedBlock(size_bytes, address, born=0, stack=stack)
    block.born_us = block.died_us = None
    return block


def _time(entry: Mapping[str, Any]) -> int | None:
    value = entry.get("time_us")
    return value if type(value) is int else None


def _items(snapshot: Mapping[str, Any], name: str, optional: bool = False) -> list[Any]:
    value = snapshot.get(name)
    if value is None and optional:
        return []
    if not isinstance(value, list):
        raise SnapshotFormatError(f"This is no memory snapshot of PyTorch: it has no list {name!r}.")
    return value


class _Stacks:
    """Conversion of stacks to frames: equal stacks are one object, and a repeated list is converted once."""

    def __init__(self) -> None:
        self._lists: dict[int, tuple[Any, Frames]] = {}
        self._frames: dict[Frames, Frames] = {}

    def of(self, entries: Iterable[Mapping[str, Any]]) -> Frames:
        cached = self._lists.get(id(entries))
        if cached is not None and cached[0] is entries:
            return cached[1]
        frames = reduce_stack([_frame(entry) for entry in islice(entries, 200)])
        frames = self._frames.setdefault(frames, frames)
        self._lists[id(entries)] = (entries, frames)
        return frames


def _frame(entry: Mapping[str, Any]) -> StackFrame:
    filename, name = entry["filename"], entry["name"]
    if type(filename) is not str or type(name) is not str:
        raise TypeError
    return StackFrame(shorten(filename[:500]), number(entry["line"]), name[:200])

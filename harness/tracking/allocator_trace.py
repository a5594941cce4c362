"""Blocks in what `torch.cuda.memory._snapshot` gives, live or read from a file. Pure.

The structure is documented at that function: segments with blocks, and for each device a trace of what was
allocated and freed.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from harness.errors import StepscopeError
from harness.tracking.births import Birth
from harness.tracking.frames import Frame, Frames, shorten, tidy

_ALLOCATED = "active_allocated"
_ROUND = 512
# Blocks and events looked at.
_MOST = 2_000_000


class SnapshotFormatError(StepscopeError):
    """What was read is no snapshot of an allocator."""


class TracedBirth(Birth):
    """A block of an allocator, with the wall time of its birth and death where the trace has them."""

    __slots__ = ("born_us", "died_us")
    born_us: int | None
    died_us: int | None


def births(snapshot: Mapping[str, Any], device: int, since_us: int = 0) -> list[TracedBirth]:
    """Every block that is alive at the end or in the trace, in no order; of the trace only what happened from
    `since_us` on.

    What was alive before the trace begins is `born` at 0; an event's moment is its place in the trace from 1.
    Raises SnapshotFormatError when the structure is not that of a snapshot.
    """
    try:
        return _births(snapshot, device, since_us)
    except KeyError as error:
        raise SnapshotFormatError(
            f"This is no memory snapshot of PyTorch: a part of it has no {str(error)[:80]}."
        ) from None
    except (TypeError, ValueError, AttributeError):
        raise SnapshotFormatError(
            "This is no memory snapshot of PyTorch: a part of it is of another kind than belongs there."
        ) from None


def check(snapshot: object) -> Mapping[str, Any]:
    """`snapshot`, when its outline is that of a snapshot; else SnapshotFormatError."""
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
    """The devices that hold memory in a snapshot."""
    return sorted({number(segment.get("device", 0)) for segment in _items(snapshot, "segments")})


def reserved_bytes(snapshot: Mapping[str, Any], device: int) -> int:
    """What the allocator holds."""
    segments = _items(snapshot, "segments")
    return sum(number(s["total_size"]) for s in segments if number(s.get("device", 0)) == device)


def event_count(snapshot: Mapping[str, Any]) -> int:
    """Events in the traces of all devices."""
    return sum(len(trace) for trace in _items(snapshot, "device_traces", optional=True))


def number(value: object) -> int:
    """A whole number as an address, a size or a line can be; raises SnapshotFormatError for anything else."""
    if type(value) is not int or not 0 <= value < 2**64:
        # Of anything nested the kind alone: as text it can be of any length.
        shown = repr(value)[:80] if isinstance(value, str | float | bool) else f"a {type(value).__name__}"
        raise SnapshotFormatError(
            f"This is no memory snapshot of PyTorch: {shown} stands where a size or an address belongs."
        )
    return value


def _births(snapshot: Mapping[str, Any], device: int, since_us: int) -> list[TracedBirth]:
    stacks = _Stacks()
    alive = {birth.address: birth for birth in _alive(snapshot, device, stacks)}
    traces = _items(snapshot, "device_traces", optional=True)
    trace = traces[device] if device < len(traces) else []
    found = list(alive.values())
    for place in range(min(len(trace), _MOST), 0, -1):
        entry = trace[place - 1]
        if since_us and (_time(entry) or since_us) < since_us:
            break
        match entry["action"]:
            case "alloc":
                birth = alive.pop(number(entry["addr"]), None)
                if birth is not None:
                    birth.born, birth.born_us = place, _time(entry)
                    birth.stack = stacks.of(entry.get("frames", ())) or birth.stack
            case "free_requested":
                birth = _birth(number(entry["addr"]), -(-number(entry["size"]) // _ROUND) * _ROUND, ())
                birth.died, birth.died_us = place, _time(entry)
                alive[birth.address] = birth
                found.append(birth)
    return found


def _alive(snapshot: Mapping[str, Any], device: int, stacks: "_Stacks") -> Iterator[TracedBirth]:
    count = 0
    for segment in _items(snapshot, "segments"):
        if number(segment.get("device", 0)) != device:
            continue
        address = number(segment["address"])
        for block in segment["blocks"]:
            size = number(block["size"])
            if block["state"] == _ALLOCATED:
                yield _birth(number(block.get("address", address)), size, stacks.of(block.get("frames", ())))
            address += size
            count += 1
            if count > _MOST:
                raise SnapshotFormatError(f"This snapshot has more than {_MOST:,} blocks; it is not read.")


def _birth(address: int, size_bytes: int, stack: Frames) -> TracedBirth:
    birth = TracedBirth(size_bytes, address, born=0, stack=stack)
    birth.born_us = birth.died_us = None
    return birth


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
    """Stacks as text of ours: equal ones are one object, and a list that is met again costs nothing."""

    def __init__(self) -> None:
        self._lists: dict[int, tuple[Any, Frames]] = {}
        self._known: dict[Frames, Frames] = {}

    def of(self, entries: Iterable[Mapping[str, Any]]) -> Frames:
        known = self._lists.get(id(entries))
        if known is not None and known[0] is entries:
            return known[1]
        frames = tidy([_frame(entry) for entry in islice(entries, 200)])
        frames = self._known.setdefault(frames, frames)
        self._lists[id(entries)] = (entries, frames)
        return frames


def _frame(entry: Mapping[str, Any]) -> Frame:
    filename, name = entry["filename"], entry["name"]
    if type(filename) is not str or type(name) is not str:
        raise TypeError
    return Frame(shorten(filename[:500]), number(entry["line"]), name[:200])

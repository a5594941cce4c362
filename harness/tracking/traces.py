"""The log of allocations in the format of `torch.cuda.memory._snapshot`, for PyTorch's memory_viz."""

from collections import deque
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, Protocol

from harness.tracking.frames import Frames, StackFrame

MOST_ENTRIES = 50_000


class Action(StrEnum):
    """An event of a block, in the allocator's terms."""

    ALLOC = "alloc"
    FREE = "free_completed"


class TraceableBlock(Protocol):
    """A live block."""

    address: int
    size_bytes: int
    stack: Frames


class TraceLog:
    """The newest `most` allocations and frees.

    Attributes:
        note: a sentence about missing events, or empty.
    """

    def __init__(self, unix_ns: Callable[[], int], most: int = MOST_ENTRIES) -> None:
        self._unix_ns = unix_ns
        self._entries: deque[tuple[Action, int, int, Frames, int]] = deque(maxlen=most)
        self._added = 0

    def add(self, action: Action, address: int, size_bytes: int, stack: Frames) -> None:
        """Record one event, in under a microsecond."""
        self._added += 1
        self._entries.append((action, address, size_bytes, stack, self._unix_ns() // 1000))

    @property
    def note(self) -> str:
        """A sentence about missing events, or empty."""
        lost = self._added - len(self._entries)
        return f"The raw snapshot lacks the {lost:,} oldest events." if lost > 0 else ""

    def snapshot(self, live: Iterable[TraceableBlock]) -> dict[str, object]:
        """Return a snapshot in the format of `torch.cuda.memory._snapshot`: one segment per live block."""
        shared = _SharedFrames()
        trace: list[dict[str, object]] = []
        for action, address, size_bytes, stack, time_us in list(self._entries):
            entry: dict[str, object] = {
                "action": action.value,
                "addr": address,
                "frames": shared.of(stack),
                "size": size_bytes,
                "stream": 0,
                "time_us": time_us,
            }
            if action is Action.FREE:
                trace.append({**entry, "action": "free_requested"})
            trace.append(entry)
        segments = [_segment(block, shared) for block in live]
        return {
            "segments": segments,
            "device_traces": [trace],
            "allocator_settings": {},
            "external_annotations": [],
        }


class _SharedFrames:
    """One object for equal stacks and frames, so that the file contains each once."""

    def __init__(self) -> None:
        self._stacks: dict[Frames, list[dict[str, object]]] = {}
        self._frames: dict[StackFrame, dict[str, object]] = {}

    def of(self, stack: Frames) -> list[dict[str, object]]:
        if stack not in self._stacks:
            self._stacks[stack] = [self._frame(frame) for frame in stack]
        return self._stacks[stack]

    def _frame(self, frame: StackFrame) -> dict[str, object]:
        if frame not in self._frames:
            self._frames[frame] = {"filename": frame.file, "line": frame.line, "name": frame.function}
        return self._frames[frame]


def _segment(block: TraceableBlock, shared: _SharedFrames) -> dict[str, Any]:
    size = block.size_bytes
    inside = {
        "address": block.address,
        "size": size,
        "requested_size": size,
        "state": "active_allocated",
        "frames": shared.of(block.stack),
    }
    return {
        "device": 0,
        "address": block.address,
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": size,
        "stream": 0,
        "segment_type": "large" if size >= 1 << 20 else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": [inside],
    }

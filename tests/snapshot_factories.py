"""Factories for snapshot tests: rows, blocks, and an allocator with torch's documented snapshot format."""

from collections.abc import Sequence
from typing import Any

from harness.records.memory import AllocationRow, MemoryCategory
from harness.tracking.blocks import LiveBlock

FORWARD = ({"filename": "/srv/someone/project/net.py", "line": 40, "name": "forward"},)


def a_row(
    site: str = "net.py:40 forward",
    held_bytes: int = 100,
    blocks: int = 1,
    grown_bytes: int | None = None,
    grown_blocks: int | None = None,
    category: MemoryCategory = MemoryCategory.ACTIVATIONS,
    module: str | None = None,
    rank: int = 1,
) -> AllocationRow:
    return AllocationRow(
        1, rank, category.value, module, site, "", held_bytes, blocks, grown_bytes, grown_blocks
    )


def a_block(
    size_bytes: int = 100,
    category: MemoryCategory = MemoryCategory.ACTIVATIONS,
    module: str | None = None,
    site: str = "net.py:40 forward",
) -> LiveBlock:
    return LiveBlock(size_bytes, category, module, site, "")


class RecordedAllocator:
    """A caching allocator that records its history in the format of `torch.cuda.memory._snapshot`.

    Each block has a segment of its own. Implements `harness.tracking.history.AllocatorHistory`.
    """

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.mode = "off"
        self.modes: list[str] = []
        self._live: dict[int, tuple[int, Sequence[dict[str, Any]]]] = {}
        self._trace: list[dict[str, Any]] = []

    def follow(self) -> None:
        self.mode = "follow"
        self.modes.append(self.mode)

    def keep(self) -> None:
        self.mode = "keep"
        self.modes.append(self.mode)

    def off(self) -> None:
        self.mode = "off"
        self.modes.append(self.mode)

    def is_foreign(self) -> bool:
        return False

    def allocate(self, address: int, size: int, time_us: int, frames: Sequence[dict[str, Any]] = ()) -> None:
        frames = [dict(frame) for frame in frames]
        self._live[address] = (size, frames if self.mode != "off" else [])
        self._note("alloc", address, size, time_us, frames)

    def free(self, address: int, time_us: int) -> None:
        size, _ = self._live.pop(address)
        self._note("free_requested", address, size, time_us, [])
        self._note("free_completed", address, size, time_us, [])

    def snapshot(self) -> dict[str, Any]:
        segments = [self._segment(address, size, f) for address, (size, f) in self._live.items()]
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.device)]
        return {"segments": segments, "device_traces": [*traces, list(self._trace)]}

    def _note(self, action: str, address: int, size: int, time_us: int, frames: Any) -> None:
        if self.mode == "follow":
            entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time_us}
            self._trace.append({**entry, "frames": frames})

    def _segment(self, address: int, size: int, frames: Any) -> dict[str, Any]:
        whole = -(-size // (2 << 20)) * (2 << 20)
        block = {"address": address, "size": size, "requested_size": size, "frames": frames}
        free = {"address": address + size, "size": whole - size, "requested_size": 0, "frames": []}
        return {
            "device": self.device,
            "address": address,
            "total_size": whole,
            "allocated_size": size,
            "active_size": size,
            "requested_size": size,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": [block | {"state": "active_allocated"}, free | {"state": "inactive"}],
        }

"""The memory breakdowns of several runs, part by part."""

from collections.abc import Sequence
from typing import NamedTuple

from harness.analysis.memory.waterfall import MemoryPart, Waterfall

# The memory of a run from the inside out; other processes and free memory are the machine's.
_ORDER = (
    MemoryPart.WEIGHTS,
    MemoryPart.GRADIENTS,
    MemoryPart.OPTIMIZER,
    MemoryPart.RETAINED,
    MemoryPart.ACTIVATIONS,
    MemoryPart.UNDIVIDED,
    MemoryPart.UNUSED,
    MemoryPart.SPLIT,
    MemoryPart.WAITING,
    MemoryPart.CONTEXT,
)


class PartRow(NamedTuple):
    """One part of the memory, and its size in each run; None: not measured there."""

    name: str
    sizes: Sequence[int | None]


def parts_side_by_side(memories: Sequence[Waterfall | None]) -> list[PartRow]:
    """Return the parts that any of the runs has, in order. A breakdown leaves out parts of zero bytes."""
    bars = [bar for memory in memories if memory is not None for bar in memory.bars if bar.place in _ORDER]
    names = dict.fromkeys(bar.name for bar in sorted(bars, key=lambda bar: _ORDER.index(bar.place)))
    return [PartRow(name, [_size(memory, name) for memory in memories]) for name in names]


def _size(memory: Waterfall | None, name: str) -> int | None:
    if memory is None:
        return None
    size = next((bar.size_bytes for bar in memory.bars if bar.name == name), None)
    # A bar of several parts names them all.
    is_measured = not any(bar.place is MemoryPart.UNDIVIDED or name in bar.name for bar in memory.bars)
    return 0 if size is None and is_measured else size

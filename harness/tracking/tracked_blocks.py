"""Blocks of memory from allocation to free: the high-water mark, and the category of each block. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.records.memory import MemoryCategory
from harness.records.run import Phase
from harness.tracking import frames
from harness.tracking.blocks import LiveBlock, Owner
from harness.tracking.frames import Frames

_INPUT_PHASES = (Phase.DATA_WAIT, Phase.H2D)
_MODELS = (
    MemoryCategory.WEIGHTS,
    MemoryCategory.BUFFERS,
    MemoryCategory.GRADIENTS,
    MemoryCategory.OPTIMIZER,
)
OLDER_SITE = "allocated before tracking began"


@dataclass(slots=True, eq=False)
class TrackedBlock:
    """A tracked block. Moments are numbers that increase with every allocation and free."""

    size_bytes: int
    address: int
    born: int
    # The tracked step of its allocation, from 1; 0: it is older.
    step: int = 0
    # None: it is older than the tracking, or was allocated outside of all phases.
    phase: Phase | None = None
    died: int | None = None
    stack: Frames = ()
    module: str | None = None
    # Allocated in a module's forward pass.
    is_inside: bool = False
    owner: Owner | None = None
    # Live at the end of the forward pass of its allocation.
    saved: bool = False
    # Live at the end of the step of its allocation.
    outlived: bool = False
    is_counted: bool = True


def high_water_mark(blocks: Iterable[TrackedBlock]) -> tuple[int, int]:
    """Return the moment with the most live bytes, and their number."""
    changes = []
    for block in blocks:
        changes.append((block.born, block.size_bytes))
        if block.died is not None:
            changes.append((block.died, -block.size_bytes))
    total = most = at = 0
    for moment, change in sorted(changes):
        total += change
        if total > most:
            most, at = total, moment
    return at, most


def alive_at(blocks: Iterable[TrackedBlock], moment: int) -> list[TrackedBlock]:
    """Return the blocks that are live right after that moment."""
    return [b for b in blocks if b.born <= moment and (b.died is None or b.died > moment)]


def retained_blocks(blocks: Iterable[TrackedBlock], steps: int) -> list[TrackedBlock]:
    """Return the live blocks from the tracked steps except the last two, without those of model and
    optimizer."""
    return [b for b in blocks if b.died is None and 1 <= b.step <= steps - 2 and not is_owned_by_model(b)]


def is_owned_by_model(block: TrackedBlock) -> bool:
    """Return whether a block is of the model, its gradients or the optimizer."""
    return block.owner is not None and block.owner.category in _MODELS


def to_live_block(block: TrackedBlock) -> LiveBlock:
    """Convert to a block of a snapshot."""
    owner = block.owner
    if owner is not None:  # The name is more useful than the line in a library.
        return LiveBlock(block.size_bytes, owner.category, owner.module, owner.name, "")
    is_tracked = block.stack or block.phase is not None
    site = frames.site(block.stack) if is_tracked else OLDER_SITE
    return LiveBlock(block.size_bytes, category(block), block.module, site, frames.text(block.stack))


def category(block: TrackedBlock) -> MemoryCategory:
    """Classify a block without an owner by the phase of its allocation and its lifetime.

    A block that outlives its step is unknown. Recomputed tensors of a checkpointed block in the backward pass
    count as activations.
    """
    if block.phase is None:
        return MemoryCategory.UNKNOWN
    if block.phase in _INPUT_PHASES:
        return MemoryCategory.INPUTS
    if block.outlived:
        return MemoryCategory.UNKNOWN
    recomputed = block.phase is Phase.BACKWARD and block.is_inside
    return MemoryCategory.ACTIVATIONS if block.saved or recomputed else MemoryCategory.TEMPORARIES


def most_saved(forwards: Iterable[Iterable[TrackedBlock]]) -> dict[str, int]:
    """Return the most bytes that one forward pass saved, by module; each of `forwards` has one pass's
    blocks."""
    most: dict[str, int] = {}
    for blocks in forwards:
        saved: dict[str, int] = {}
        for block in blocks:
            if block.saved and block.module is not None:
                saved[block.module] = saved.get(block.module, 0) + block.size_bytes
        for path, size_bytes in saved.items():
            most[path] = max(most.get(path, 0), size_bytes)
    return most

"""Blocks of memory from birth to death: when most was alive, and what each was for. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from harness.memory_records import MemoryCategory
from harness.records import Phase
from harness.tracking import frames
from harness.tracking.blocks import Block, Owner
from harness.tracking.frames import Frames

_INPUT_PHASES = (Phase.DATA_WAIT, Phase.H2D)
_MODELS = (
    MemoryCategory.WEIGHTS,
    MemoryCategory.BUFFERS,
    MemoryCategory.GRADIENTS,
    MemoryCategory.OPTIMIZER,
)
OLDER_SITE = "allocated before it was followed"


@dataclass(slots=True, eq=False)
class Birth:
    """A block, from its birth on. Moments are numbers that grow with every birth and death."""

    size_bytes: int
    address: int
    born: int
    # The tracked step in which it was born, from 1; 0: it is older.
    step: int = 0
    # None: it is older than what follows it, or was born outside of all phases.
    phase: Phase | None = None
    died: int | None = None
    stack: Frames = ()
    module: str | None = None
    # Born in a module's forward pass.
    is_inside: bool = False
    owner: Owner | None = None
    # Alive at the end of the forward pass it was born in.
    saved: bool = False
    # Alive at the end of the step it was born in.
    outlived: bool = False
    is_counted: bool = True


def fullest(births: Iterable[Birth]) -> tuple[int, int]:
    """The moment at which most was alive, and how many bytes."""
    changes = []
    for birth in births:
        changes.append((birth.born, birth.size_bytes))
        if birth.died is not None:
            changes.append((birth.died, -birth.size_bytes))
    total = most = at = 0
    for moment, change in sorted(changes):
        total += change
        if total > most:
            most, at = total, moment
    return at, most


def alive_at(births: Iterable[Birth], moment: int) -> list[Birth]:
    """What was alive right after that moment."""
    return [b for b in births if b.born <= moment and (b.died is None or b.died > moment)]


def grown(births: Iterable[Birth], steps: int) -> list[Birth]:
    """What the tracked steps but the last two made, still alive, and not the model's or the optimizer's."""
    return [b for b in births if b.died is None and 1 <= b.step <= steps - 2 and not _is_models(b)]


def _is_models(birth: Birth) -> bool:
    return birth.owner is not None and birth.owner.category in _MODELS


def to_block(birth: Birth) -> Block:
    """What is told of a block."""
    owner = birth.owner
    if owner is not None:  # Its name says more than the line in which a library made it.
        return Block(birth.size_bytes, owner.category, owner.module, owner.name, "")
    followed = birth.stack or birth.phase is not None
    site = frames.site(birth.stack) if followed else OLDER_SITE
    return Block(birth.size_bytes, category(birth), birth.module, site, frames.text(birth.stack))


def category(birth: Birth) -> MemoryCategory:
    """What nobody owns, by when it was made and how long it stayed.

    What outlived its step is somebody's, nobody knows whose. What a checkpointed block computes again in the
    backward pass counts as activations.
    """
    if birth.phase is None:
        return MemoryCategory.UNKNOWN
    if birth.phase in _INPUT_PHASES:
        return MemoryCategory.INPUTS
    if birth.outlived:
        return MemoryCategory.UNKNOWN
    recomputed = birth.phase is Phase.BACKWARD and birth.is_inside
    return MemoryCategory.ACTIVATIONS if birth.saved or recomputed else MemoryCategory.TEMPORARIES


def most_saved(forwards: Iterable[Iterable[Birth]]) -> dict[str, int]:
    """By module, what one forward pass saved at its most; each of `forwards` is what one made."""
    most: dict[str, int] = {}
    for births in forwards:
        saved: dict[str, int] = {}
        for birth in births:
            if birth.saved and birth.module is not None:
                saved[birth.module] = saved.get(birth.module, 0) + birth.size_bytes
        for path, size_bytes in saved.items():
            most[path] = max(most.get(path, 0), size_bytes)
    return most

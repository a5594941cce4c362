"""Blocks of memory put together to the rows of a snapshot. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from harness.memory_records import AllocationRow, MemoryCategory
from harness.tracking.kept_graphs import KeptGraphs

# Rows kept of a snapshot.
MOST_ROWS = 300
# Of these: the sites that grew most, however little they hold.
_MOST_GROWN = 100


# Runs what must not break training, by name; whether it ran to its end. See
# `harness.observers.dispatch.Guard.run`.
Guarded = Callable[[str, Callable[[], None]], bool]


class Owner(NamedTuple):
    """What a block is, where that is known: its category, its module's path, its name."""

    category: MemoryCategory
    module: str | None
    name: str


class Block(NamedTuple):
    """One block of memory that was alive."""

    size_bytes: int
    category: MemoryCategory
    module: str | None
    site: str
    stack: str


class Followed(NamedTuple):
    """What following the allocations of some steps gave."""

    # Alive at the moment of the tracked steps at which most was.
    held: list[Block]
    # Allocated in the tracked steps but the last two, kept, and not known to belong to the model.
    grown: list[Block]
    # Saved for the backward pass at its most, by module.
    activation_bytes: dict[str, int]
    # The snapshot for PyTorch's memory_viz.
    raw: dict[str, object] | None
    # What is missing, in a sentence; empty when nothing is.
    note: str
    # Autograd graphs that outlived their steps; None when none did.
    graphs: KeptGraphs | None = None


class Summary(NamedTuple):
    """The rows of a snapshot: `sites` of them were found, of which the largest are in `rows`."""

    rows: list[AllocationRow]
    explained_bytes: int
    sites: int


@dataclass(slots=True)
class _Site:
    held_bytes: int = 0
    blocks: int = 0
    grown_bytes: int = 0
    grown_blocks: int = 0
    stack: str = ""


def summarise(
    snapshot_id: int, held: Iterable[Block], grown: Iterable[Block] | None, most: int = MOST_ROWS
) -> Summary:
    """Group blocks by category, module and site. `explained_bytes` is what `held` adds up to, before anything
    is cut; without `grown` nothing was tracked, and what grew is not known."""
    sites: dict[tuple[MemoryCategory, str | None, str], _Site] = {}
    for block in held:
        site = sites.setdefault((block.category, block.module, block.site), _Site())
        site.held_bytes += block.size_bytes
        site.blocks += 1
        site.stack = site.stack or block.stack
    for block in grown or ():
        site = sites.setdefault((block.category, block.module, block.site), _Site())
        site.grown_bytes += block.size_bytes
        site.grown_blocks += 1
        site.stack = site.stack or block.stack
    explained = sum(site.held_bytes for site in sites.values())
    order = sorted(sites, key=lambda key: (-sites[key].held_bytes, -sites[key].grown_bytes, key[2]))
    kept = _kept([(key, sites[key].grown_bytes) for key in order], most)
    is_tracked = grown is not None
    rows = [
        AllocationRow(
            snapshot_id,
            rank,
            category.value,
            module,
            name,
            sites[category, module, name].stack,
            sites[category, module, name].held_bytes,
            sites[category, module, name].blocks,
            sites[category, module, name].grown_bytes if is_tracked else None,
            sites[category, module, name].grown_blocks if is_tracked else None,
        )
        for rank, (category, module, name) in enumerate(kept, start=1)
    ]
    return Summary(rows, explained, len(sites))


Key = tuple[MemoryCategory, str | None, str]


def _kept(order: list[tuple[Key, int]], most: int) -> list[Key]:
    """Of sites in order, the first; and those that grew most, which may hold little yet."""
    if len(order) <= most:
        return [key for key, _ in order]
    growing = sorted((pair for pair in order if pair[1] > 0), key=lambda pair: -pair[1])[:_MOST_GROWN]
    chosen = {key for key, _ in growing[:most]}
    for key, _ in order:
        if len(chosen) >= most:
            break
        chosen.add(key)
    return [key for key, _ in order if key in chosen]

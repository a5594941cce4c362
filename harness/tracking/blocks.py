"""Aggregation of blocks of memory into the rows of a snapshot. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.records.memory import AllocationRow, MemoryCategory
from harness.tracking.retained_graphs import RetainedGraphs

# The most rows of a snapshot.
MOST_ROWS = 300
# Of these: the most sites that are included for their growth, regardless of their size.
_MOST_RETAINED = 100


# Runs a named function whose failure must not break training; returns whether it succeeded. See
# `harness.watch.guard.FailureGuard.run`.
GuardedCall = Callable[[str, Callable[[], None]], bool]


class Owner(NamedTuple):
    """The owner of a block, where known: category, module path and name."""

    category: MemoryCategory
    module: str | None
    name: str


class LiveBlock(NamedTuple):
    """One live block of memory."""

    size_bytes: int
    category: MemoryCategory
    module: str | None
    site: str
    stack: str


class ReplacedBlock(NamedTuple):
    """The newest of the blocks with which the steps replaced each other's, each larger than the one before;
    `grown_bytes` is the difference to the first one."""

    block: LiveBlock
    grown_bytes: int


class TrackingResult(NamedTuple):
    """The result of tracking the allocations of some steps."""

    # Live at the high-water mark of the tracked steps.
    live: list[LiveBlock]
    # Retained: allocated in the tracked steps except the last two, still live, and not owned by the model.
    retained: list[LiveBlock]
    # The most that was saved for the backward pass, by module.
    activation_bytes: dict[str, int]
    # The snapshot for PyTorch's memory_viz.
    raw: dict[str, object] | None
    # The missing data, in a sentence; else empty.
    note: str
    # Autograd graphs that outlived their steps; None when none did.
    graphs: RetainedGraphs | None = None
    # Those that results of the steps keep, such as a hidden state, where no loss does; None if not searched.
    graphs_of_results: RetainedGraphs | None = None
    replaced: Sequence[ReplacedBlock] = ()


class AllocationSummary(NamedTuple):
    """The rows of a snapshot: the largest of `sites` allocation sites."""

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


def summarize(
    snapshot_id: int,
    live: Iterable[LiveBlock],
    retained: Iterable[LiveBlock] | None,
    most: int = MOST_ROWS,
    replaced: Iterable[ReplacedBlock] = (),
) -> AllocationSummary:
    """Group blocks by category, module and site. `explained_bytes` is the sum over `live`, before rows are
    cut; without `retained` nothing was tracked, and the growth is unknown. The growth of `replaced` blocks is
    one of bytes, in no further blocks."""
    sites: dict[tuple[MemoryCategory, str | None, str], _Site] = {}
    for block in live:
        site = sites.setdefault((block.category, block.module, block.site), _Site())
        site.held_bytes += block.size_bytes
        site.blocks += 1
        site.stack = site.stack or block.stack
    for block in retained or ():
        site = sites.setdefault((block.category, block.module, block.site), _Site())
        site.grown_bytes += block.size_bytes
        site.grown_blocks += 1
        site.stack = site.stack or block.stack
    for block, grown_bytes in replaced:
        site = sites.setdefault((block.category, block.module, block.site), _Site())
        site.grown_bytes += grown_bytes
        site.stack = site.stack or block.stack
    explained = sum(site.held_bytes for site in sites.values())
    order = sorted(sites, key=lambda key: (-sites[key].held_bytes, -sites[key].grown_bytes, key[2]))
    selected = _select([(key, sites[key].grown_bytes) for key in order], most)
    is_tracked = retained is not None
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
        for rank, (category, module, name) in enumerate(selected, start=1)
    ]
    return AllocationSummary(rows, explained, len(sites))


Key = tuple[MemoryCategory, str | None, str]


def _select(order: list[tuple[Key, int]], most: int) -> list[Key]:
    """Select the largest sites, and those with the most growth, which may still be small."""
    if len(order) <= most:
        return [key for key, _ in order]
    growing = sorted((pair for pair in order if pair[1] > 0), key=lambda pair: -pair[1])[:_MOST_RETAINED]
    chosen = {key for key, _ in growing[:most]}
    for key, _ in order:
        if len(chosen) >= most:
            break
        chosen.add(key)
    return [key for key, _ in order if key in chosen]

"""Blocks that steps replace by larger ones, as `buffer = torch.cat([buffer, rows])` does.

Each of them is freed soon after, so at most the newest is retained; their growth shows in the live bytes of
the allocation site at the ends of steps.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from harness.tracking.blocks import LiveBlock, ReplacedBlock
from harness.tracking.frames import Frames
from harness.tracking.tracked_blocks import TrackedBlock, is_owned_by_model, to_live_block

# Where each step replaces the block it is one less than the tracked steps: inputs of random lengths do not
# grow from each step to the next.
LEAST_LARGER = 2

_Place = tuple[Frames, str | None]


class _Level(NamedTuple):
    """The live bytes and blocks of an allocation site at the end of one step, and the newest and the largest
    block."""

    size_bytes: int
    blocks: int
    newest: TrackedBlock
    largest: TrackedBlock


class ReplacedBlocks:
    """The live bytes of each allocation site at the end of each tracked step."""

    def __init__(self) -> None:
        self._levels: dict[_Place, list[_Level]] = {}

    def end_step(self, live: Iterable[TrackedBlock]) -> None:
        """Add the live blocks at the end of a step; those older than the tracking are left out."""
        sums: dict[_Place, _Level] = {}
        for block in live:
            if block.step and block.stack and not is_owned_by_model(block):
                place = block.stack, block.module
                level = sums.get(place, _Level(0, 0, block, block))
                newest = max(level.newest, block, key=lambda one: one.born)
                largest = max(level.largest, block, key=lambda one: one.size_bytes)
                sums[place] = _Level(level.size_bytes + block.size_bytes, level.blocks + 1, newest, largest)
        # A site without live blocks between two steps holds no memory that lasts.
        self._levels = {place: levels for place, levels in self._levels.items() if place in sums}
        for place, level in sums.items():
            self._levels.setdefault(place, []).append(level)

    def find(self) -> list[ReplacedBlock]:
        """Return the blocks that were replaced at least `LEAST_LARGER` times, each time by a larger one."""
        return [one for levels in self._levels.values() if (one := _find_replaced(levels)) is not None]


def _find_replaced(levels: list[_Level]) -> ReplacedBlock | None:
    """Return the block that was replaced at one site; all of the site's blocks together where their number
    stays, otherwise its largest block, since a line may allocate small tensors too."""
    first, last = levels[0], levels[-1]
    if len({level.blocks for level in levels}) == 1:
        replaced = [(a.size_bytes, b.size_bytes) for a, b in pairwise(levels) if a.newest is not b.newest]
        if _are_larger(replaced):
            return ReplacedBlock(to_live_block(last.newest), last.size_bytes - first.size_bytes)
    largest = [(a.largest, b.largest) for a, b in pairwise(levels) if a.largest is not b.largest]
    # One that is still live is retained, as in a list to which ever larger tensors are appended.
    is_retained = any(before.died is None for before, _ in largest)
    if is_retained or not _are_larger([(before.size_bytes, after.size_bytes) for before, after in largest]):
        return None
    return ReplacedBlock(to_live_block(last.largest), last.largest.size_bytes - first.largest.size_bytes)


def _are_larger(replaced: list[tuple[int, int]]) -> bool:
    return len(replaced) >= LEAST_LARGER and all(later > earlier for earlier, later in replaced)


def without_replaced(retained: Iterable[LiveBlock], replaced: Iterable[ReplacedBlock]) -> list[LiveBlock]:
    """Return the retained blocks without the newest of those that are replaced: of these only the growth is
    retained."""
    places = {(one.block.module, one.block.site) for one in replaced}
    return [block for block in retained if (block.module, block.site) not in places]

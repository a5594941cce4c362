"""Summary of memory snapshots: by category, retained memory, and the difference of two. Pure functions."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from harness import words
from harness.records.memory import AllocationRow, MemoryCategory, SnapshotRow, reason_in_log

# Less is no suspect: the losses of some steps wait for the log writer.
LEAST_GROWN_BYTES = 1024

# Per tracked step on the CPU's heap: tracking itself takes 1 to 7 KiB per step in runs of the catalog.
TRACKING_BYTES = 7 * 1024
# The growth of the heap beyond tensors that is named if no verdict states how fast memory grows: well above
# what tracking takes.
LEAST_HEAP_GROWTH_BYTES = 16 * 1024
# As multiples of the growth in the verdict: between these the growth in the tracked steps is the same one.
SIMILAR_GROWTH = 0.5, 2.0
# As a share of the heap's growth: below this, live tensors do not explain it.
LEAST_EXPLAINED = 0.5

# Identity of an allocation site across snapshots: category, module, site.
Key = tuple[str, str | None, str]


class ChangeKind(StrEnum):
    """Kind of difference of a site between two snapshots."""

    GROWN = "grown"
    SHRUNK = "shrunk"
    NEW = "new"
    GONE = "gone"


class SiteChange(NamedTuple):
    """One allocation site in two snapshots; bytes and blocks are 0 where it had none."""

    kind: ChangeKind
    category: str
    module: str | None
    site: str
    before_bytes: int
    after_bytes: int
    before_blocks: int
    after_blocks: int

    @property
    def grown_bytes(self) -> int:
        """Difference in bytes; negative for a decrease."""
        return self.after_bytes - self.before_bytes

    @property
    def grown_blocks(self) -> int:
        """Difference in blocks; negative for a decrease."""
        return self.after_blocks - self.before_blocks


class CategoryBytes(NamedTuple):
    """Allocated bytes of one category."""

    category: str
    held_bytes: int
    blocks: int


def compare(before: Iterable[AllocationRow], after: Iterable[AllocationRow]) -> list[SiteChange]:
    """Sites with a difference in bytes or blocks, the largest change first.

    The sum of `grown_bytes` is the difference of the two totals. A site that was cut from one of the
    snapshots appears as new or gone.
    """
    earlier, later = _by_key(before), _by_key(after)
    changes = []
    for key in earlier.keys() | later.keys():
        old, new = earlier.get(key, (0, 0)), later.get(key, (0, 0))
        if old != new:
            kind = _kind(key in earlier, key in later, old, new)
            changes.append(SiteChange(kind, *key, old[0], new[0], old[1], new[1]))
    return sorted(changes, key=lambda c: (-abs(c.grown_bytes), -abs(c.grown_blocks), c.site, c.module or ""))


def by_category(rows: Iterable[AllocationRow]) -> list[CategoryBytes]:
    """Bytes and blocks of each category, the largest first; they sum to those of the rows."""
    totals: dict[str, tuple[int, int]] = {}
    for row in rows:
        size, blocks = totals.get(row.category, (0, 0))
        totals[row.category] = (size + row.held_bytes, blocks + row.blocks)
    return sorted((CategoryBytes(c, *sums) for c, sums in totals.items()), key=lambda c: -c.held_bytes)


def suspects(rows: Iterable[AllocationRow]) -> list[AllocationRow]:
    """The sites that retained memory of the tracked steps, the fastest growing first."""
    growing = [row for row in rows if row.grown_bytes]
    return sorted(growing, key=lambda row: (-(row.grown_bytes or 0), row.rank))


def retained_bytes_per_step(rows: Iterable[AllocationRow], steps: int) -> float:
    """The bytes that each of `steps` tracked steps retained at sites with a block or more per step."""
    counted = max(1, steps - 2)
    sizes = [row.grown_bytes or 0 for row in rows if (row.grown_blocks or 0) >= counted]
    return sum(sizes) / counted


def suspect_sentence(rows: Iterable[AllocationRow], steps: int) -> str:
    """The site that retained most in `steps` tracked steps, in one sentence; from `LEAST_GROWN_BYTES` on."""
    sites = [row for row in suspects(rows) if (row.grown_bytes or 0) >= LEAST_GROWN_BYTES]
    tracked = words.plural(max(0, steps - 2), "step")
    if not sites:
        least = words.size(LEAST_GROWN_BYTES)
        return (
            f"No allocation site of tensors retained {least} or more from {tracked}. What is retained more "
            "rarely, or outside of tensors (NumPy arrays, bytes, lists), is not found in this way."
        )
    # The graph of a retained result keeps the batches that it was computed from.
    first = next((row for row in sites if row.category != MemoryCategory.INPUTS), sites[0])
    if first.grown_blocks == 0:
        return _replaced_sentence(first, steps)
    blocks = words.plural(first.grown_blocks or 0, "block")
    text = f"{tracked} retained {words.size(first.grown_bytes)} in {blocks} allocated at {first.site}"
    if first.module:
        text += f" (module {first.module})"
    if len(sites) == 1:
        return f"{text}."
    if first is not sites[0]:
        batches = sum(row.grown_bytes or 0 for row in sites if row.category == MemoryCategory.INPUTS)
        return f"{text}, and {words.size(batches)} of their batches."
    less = "less " if (sites[1].grown_bytes or 0) < (first.grown_bytes or 0) else ""
    return f"{text}, and {less}at {words.plural(len(sites) - 1, 'other site')}."


def _replaced_sentence(row: AllocationRow, steps: int) -> str:
    """The sentence on a block that the steps replaced by larger ones."""
    return (
        f"In {words.plural(steps, 'step')} the tensor allocated at {row.site} was replaced by larger ones, "
        f"which grew by {words.size(row.grown_bytes)}: usually x = torch.cat([x, …]), which needs the old "
        "and the new tensor at once. Append to a list, or write into a tensor of the final size."
    )


def heap_sentence(
    rows: Iterable[AllocationRow], heap_bytes: Sequence[int | None], verdict_slope: float | None = None
) -> str | None:
    """Return a sentence if the CPU's heap grew in tracked steps by more than live tensors explain, otherwise
    None. `heap_bytes` are its bytes in use after each tracked step; `verdict_slope` is the growth of live
    memory in the leak verdict, in bytes per step: the heap must have grown about as fast."""
    sizes = [size for size in heap_bytes if size is not None]
    steps = len(sizes) - 2
    if steps < 1 or len(sizes) < len(heap_bytes):
        return None
    # As for the sites, two steps do not count: here the first ones, in which tracking starts. The median
    # excludes a single large block, which is no growth from step to step, and the mean what is freed again.
    net_growth = (sizes[-1] - sizes[1]) / steps
    growth = min(net_growth, median(after - before for before, after in pairwise(sizes[1:])))
    explained = sum(row.grown_bytes or 0 for row in rows) / steps
    if explained >= LEAST_EXPLAINED * growth or not _is_beyond_tracking(growth - explained, verdict_slope):
        return None
    return (
        f"In {words.plural(steps, 'step')} the heap grew by {words.size(growth)} per step, and live tensors "
        f"of the training thread by {words.size(explained)}: what grows is NumPy arrays, bytes, strings, "
        "large lists, a library's memory, other threads' tensors, or autograd nodes of a sum such as total "
        "+= loss, where loss.item() has none."
    )


def _is_beyond_tracking(growth: float, verdict_slope: float | None) -> bool:
    """Return whether growth of the heap per step is more than tracking takes, and that of the verdict."""
    if verdict_slope is None:
        return growth >= LEAST_HEAP_GROWTH_BYTES
    least, most = (factor * verdict_slope for factor in SIMILAR_GROWTH)
    return max(TRACKING_BYTES, least) <= growth <= most + TRACKING_BYTES


SNAPSHOT_HEADINGS = ("ID>", "STEP>", "WHY", "ALLOCATED>", "EXPLAINED>", "SITES>", "TOOK>", "FILE", "")
SITE_HEADINGS = ("HELD>", "BLOCKS>", "GREW>", "CATEGORY", "MODULE", "SITE")
CHANGE_HEADINGS = ("CHANGE>", "BEFORE>", "AFTER>", "BLOCKS>", "CATEGORY", "MODULE", "SITE")


def snapshot_cells(row: SnapshotRow) -> tuple[str, ...]:
    """A row of cells under `SNAPSHOT_HEADINGS`."""
    return (
        words.count(row.snapshot_id),
        words.count(row.step),
        reason_in_log(row.reason),
        words.size(row.allocated_bytes),
        words.size(row.explained_bytes),
        words.count(row.sites),
        words.duration(row.took_ns),
        row.file or words.NOT_AVAILABLE,
        row.message,
    )


def site_cells(row: AllocationRow) -> tuple[str, ...]:
    """A row of cells under `SITE_HEADINGS`."""
    return (
        words.size(row.held_bytes),
        words.count(row.blocks),
        words.size(row.grown_bytes),
        row.category,
        row.module or "",
        row.site,
    )


def change_cells(change: SiteChange) -> tuple[str, ...]:
    """A row of cells under `CHANGE_HEADINGS`."""
    sign = "+" if change.grown_bytes > 0 else ""
    return (
        f"{sign}{words.size(change.grown_bytes)}",
        words.size(change.before_bytes),
        words.size(change.after_bytes),
        f"{change.grown_blocks:+,}".replace("-", "−"),
        change.category,
        change.module or "",
        change.site,
    )


def _by_key(rows: Iterable[AllocationRow]) -> dict[Key, tuple[int, int]]:
    totals: dict[Key, tuple[int, int]] = {}
    for row in rows:
        key = (row.category, row.module, row.site)
        size, blocks = totals.get(key, (0, 0))
        totals[key] = (size + row.held_bytes, blocks + row.blocks)
    return totals


def _kind(is_before: bool, is_after: bool, old: Sequence[int], new: Sequence[int]) -> ChangeKind:
    if not is_before or not is_after:
        return ChangeKind.NEW if is_after else ChangeKind.GONE
    return ChangeKind.GROWN if tuple(new) > tuple(old) else ChangeKind.SHRUNK

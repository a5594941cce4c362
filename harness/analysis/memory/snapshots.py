"""What a snapshot's rows say together: by category, what grew, and what changed between two of them. Pure."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.memory_records import AllocationRow, SnapshotRow

# Less than this is no suspect: losses on their way to the log stay for some steps.
LEAST_GROWN_BYTES = 1024

# What an allocation site is known by in every snapshot: category, module, site.
Key = tuple[str, str | None, str]


class ChangeKind(StrEnum):
    """What became of a site between two snapshots."""

    GROWN = "grown"
    SHRUNK = "shrunk"
    NEW = "new"
    GONE = "gone"


class SiteChange(NamedTuple):
    """One site in two snapshots; bytes and blocks are 0 where it did not hold any."""

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
        """How much more it holds now; negative: less."""
        return self.after_bytes - self.before_bytes

    @property
    def grown_blocks(self) -> int:
        """How many blocks more it holds now; negative: fewer."""
        return self.after_blocks - self.before_blocks


class CategoryBytes(NamedTuple):
    """What one category held."""

    category: str
    held_bytes: int
    blocks: int


def compare(before: Iterable[AllocationRow], after: Iterable[AllocationRow]) -> list[SiteChange]:
    """Every site whose bytes or blocks differ, the largest change first.

    The changes add up: their `grown_bytes` together are what `after` holds more than `before`. A site that
    was cut from one of the snapshots reads as new or gone.
    """
    held, now = _by_key(before), _by_key(after)
    changes = []
    for key in held.keys() | now.keys():
        was, became = held.get(key, (0, 0)), now.get(key, (0, 0))
        if was != became:
            changes.append(SiteChange(_kind(key in held, key in now, was, became), *key, *_both(was, became)))
    return sorted(changes, key=lambda c: (-abs(c.grown_bytes), -abs(c.grown_blocks), c.site, c.module or ""))


def by_category(rows: Iterable[AllocationRow]) -> list[CategoryBytes]:
    """What each category holds, the largest first; together what the rows hold."""
    held: dict[str, tuple[int, int]] = {}
    for row in rows:
        size, blocks = held.get(row.category, (0, 0))
        held[row.category] = (size + row.held_bytes, blocks + row.blocks)
    return sorted((CategoryBytes(c, *sums) for c, sums in held.items()), key=lambda c: -c.held_bytes)


def suspects(rows: Iterable[AllocationRow]) -> list[AllocationRow]:
    """The sites that kept more with every tracked step, the fastest growing first."""
    grown = [row for row in rows if row.grown_bytes]
    return sorted(grown, key=lambda row: (-(row.grown_bytes or 0), row.rank))


def suspect_sentence(rows: Iterable[AllocationRow], steps: int) -> str:
    """What grew fastest in `steps` tracked steps, in one sentence; below `LEAST_GROWN_BYTES` nothing did."""
    found = [row for row in suspects(rows) if (row.grown_bytes or 0) >= LEAST_GROWN_BYTES]
    looked = words.plural(max(0, steps - 2), "step")
    if not found:
        return f"Nothing to speak of that {looked} allocated was kept."
    first = found[0]
    kept = words.plural(first.grown_blocks or 0, "block")
    text = f"{looked} kept {words.size(first.grown_bytes)} in {kept} allocated at {first.site}"
    if first.module:
        text += f" (module {first.module})"
    others = len(found) - 1
    return f"{text}, and less at {words.plural(others, 'other site')}." if others else f"{text}."


SNAPSHOT_HEADINGS = ("ID>", "STEP>", "WHY", "ALLOCATED>", "EXPLAINED>", "SITES>", "TOOK>", "FILE", "")
SITE_HEADINGS = ("HELD>", "BLOCKS>", "GREW>", "CATEGORY", "MODULE", "SITE")
CHANGE_HEADINGS = ("CHANGE>", "BEFORE>", "AFTER>", "BLOCKS>", "CATEGORY", "MODULE", "SITE")


def snapshot_cells(row: SnapshotRow) -> tuple[str, ...]:
    """A line under `SNAPSHOT_HEADINGS`."""
    return (
        words.count(row.snapshot_id),
        words.count(row.step),
        row.reason,
        words.size(row.allocated_bytes),
        words.size(row.explained_bytes),
        words.count(row.sites),
        words.duration(row.took_ns),
        row.file or words.NOT_AVAILABLE,
        row.message,
    )


def site_cells(row: AllocationRow) -> tuple[str, ...]:
    """A line under `SITE_HEADINGS`."""
    return (
        words.size(row.held_bytes),
        words.count(row.blocks),
        words.size(row.grown_bytes),
        row.category,
        row.module or "",
        row.site,
    )


def change_cells(change: SiteChange) -> tuple[str, ...]:
    """A line under `CHANGE_HEADINGS`."""
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
    found: dict[Key, tuple[int, int]] = {}
    for row in rows:
        key = (row.category, row.module, row.site)
        size, blocks = found.get(key, (0, 0))
        found[key] = (size + row.held_bytes, blocks + row.blocks)
    return found


def _kind(was_there: bool, is_there: bool, was: Sequence[int], became: Sequence[int]) -> ChangeKind:
    if not was_there or not is_there:
        return ChangeKind.NEW if is_there else ChangeKind.GONE
    return ChangeKind.GROWN if tuple(became) > tuple(was) else ChangeKind.SHRUNK


def _both(was: tuple[int, int], became: tuple[int, int]) -> tuple[int, int, int, int]:
    return was[0], became[0], was[1], became[1]

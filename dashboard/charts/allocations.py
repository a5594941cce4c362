"""Tables of live allocations: lines of a snapshot, of the comparison of two, and of an OOM report."""

from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.memory.snapshots import SiteChange
from harness.analysis.oom.report import OomFacts
from harness.analysis.slowdown import UNKNOWN, slowdown_of
from harness.records.memory import AllocationRow, SnapshotRow


class AllocationLine(NamedTuple):
    """Live memory of one allocation site. `share_pct` is of all allocated memory."""

    held_bytes: int
    share_pct: float | None
    blocks: int
    retained_bytes: int | None
    category: str
    module: str
    site: str


class SiteChangeLine(NamedTuple):
    """One allocation site with different memory in two snapshots."""

    change_bytes: int
    before_bytes: int
    after_bytes: int
    blocks: int
    what: str
    category: str
    module: str
    site: str


def allocation_line(row: AllocationRow, allocated_bytes: int | None) -> AllocationLine:
    """Convert a row of a snapshot."""
    return AllocationLine(
        held_bytes=row.held_bytes,
        share_pct=100 * row.held_bytes / allocated_bytes if allocated_bytes else None,
        blocks=row.blocks,
        retained_bytes=row.grown_bytes,
        category=row.category,
        module=row.module or "",
        site=row.site,
    )


def change_line(change: SiteChange) -> SiteChangeLine:
    """Convert a row of a comparison."""
    return SiteChangeLine(
        change_bytes=change.grown_bytes,
        before_bytes=change.before_bytes,
        after_bytes=change.after_bytes,
        blocks=change.grown_blocks,
        what=change.kind.value,
        category=change.category,
        module=change.module or "",
        site=change.site,
    )


def in_words(changes: Sequence[SiteChange], before: SnapshotRow, after: SnapshotRow) -> str:
    """Summarize the comparison in one sentence: the total difference and the site with most of it."""
    if not changes:
        return "Nothing differs between them."
    steps = after.step - before.step
    grown = sum(change.grown_bytes for change in changes)
    later = f"{words.plural(abs(steps), 'step')} {'later' if steps >= 0 else 'earlier'}"
    text = f"{words.size(abs(grown))} {'more' if grown >= 0 else 'less'} {later}"
    first = changes[0]
    if first.grown_bytes > 0 and steps > 0:
        text += f"; most of it from {first.site}: {words.size(first.grown_bytes / steps)} per step"
    return f"{text}."


def cost(row: SnapshotRow) -> str:
    """Describe how a snapshot was taken, its overhead, and the share of allocated memory that it covers."""
    parts = [f"Taken at step {words.count(row.step)} ({row.method})."]
    parts.append(f"Training waited {words.duration(row.took_ns)} for it.")
    if row.slowdown is not None:
        slowdown = slowdown_of(row.slowdown)
        at = UNKNOWN if slowdown is None else f"at {slowdown:.2f} times the usual step time"
        parts.append(f"Recorded {words.plural(row.tracked_steps, 'step')}, {at}.")
    if row.explained_bytes is not None and row.allocated_bytes:
        share = words.percent(100 * row.explained_bytes / row.allocated_bytes)
        parts.append(f"The list covers {share} of allocated memory.")
    return " ".join([*parts, row.message]).strip()


class OomAllocationLine(NamedTuple):
    """Live memory of one kind or site at an OOM; `blocks` is None where allocations were not recorded."""

    held_bytes: int
    what: str
    where: str
    blocks: int | None


class StepLine(NamedTuple):
    """One step before memory ran out."""

    step: int
    step_ms: float
    allocated_bytes: int | None
    peak_bytes: int | None
    reserved_bytes: int | None


def oom_lines(facts: OomFacts) -> list[OomAllocationLine]:
    """Return the live memory at an OOM: by variable, by kind and module, then by allocation site."""
    lines = [
        OomAllocationLine(
            one.held_bytes,
            f"part of {one.category}" if facts.is_part(one) else one.category,
            one.module or "",
            None,
        )
        for one in facts.holders
    ]
    lines += [OomAllocationLine(one.held_bytes, one.site, "", one.blocks) for one in facts.sites]
    variables = [
        OomAllocationLine(one.held_bytes, f"variable {one.name}", one.site, one.blocks)
        for one in facts.variables
    ]
    return variables + lines


def step_lines(facts: OomFacts) -> list[StepLine]:
    """Return the steps before the OOM, the newest first."""
    return [
        StepLine(row.step, row.step_ns / 1e6, row.allocated_bytes, row.peak_bytes, row.reserved_bytes)
        for row in reversed(facts.steps)
    ]

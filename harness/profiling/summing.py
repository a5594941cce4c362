"""What a profile says: its time by kind of work, and one sentence; pure, and free of torch."""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.profile_records import Kind
from harness.profiling.kinds import classify


class Work(NamedTuple):
    """An operator or kernel of a profile; times in microseconds, its own without what it called."""

    name: str
    calls: int
    self_us: float


class KindTime(NamedTuple):
    """What one kind of work took."""

    kind: Kind
    self_us: float
    share: float
    """Of all the profile saw, 0 to 1."""


def by_kind(works: Sequence[Work]) -> list[KindTime]:
    """The time of each kind of work, the most first; empty when there is none."""
    sums: defaultdict[Kind, float] = defaultdict(float)
    for work in works:
        sums[classify(work.name)] += work.self_us
    total = sum(sums.values())
    if total <= 0:
        return []
    found = [KindTime(kind, us, us / total) for kind, us in sums.items()]
    return sorted(found, key=lambda one: -one.self_us)


def sentence(works: Sequence[Work], steps: int, is_on_device: bool) -> str:
    """What takes most, for people."""
    kinds = by_kind(works)
    first = max(works, key=lambda work: work.self_us)
    parts = ", ".join(f"{one.kind} {words.percent(100 * one.share)}" for one in kinds[:3])
    whose = "kernels on the device" if is_on_device else "operators on the CPU"
    total = sum(work.self_us for work in works)
    return (
        f"In {words.plural(steps, 'step')} the {whose} took {words.duration(total * 1e3)}: {parts}. "
        f"Most is in {first.name[:80]} ({words.percent(100 * first.self_us / total)})."
    )

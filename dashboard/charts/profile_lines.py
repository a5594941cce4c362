"""The table of a profile's operators and kernels: its lines, a search in them, and two profiles compared."""

from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeVar

from harness.analysis.profiles import ProfileComparison, ProfilePart, own_ns
from harness.records.profile import ProfileOpRow, ProfileRow

_MS = 1e6
# Separates the kind of work from the name in a part's key.
_SEPARATOR = "\n"


class Works(StrEnum):
    """The lists that a profile can be shown as."""

    OPERATORS = "operators"
    KERNELS = "kernels"
    # In comparisons only; for one profile the icicle chart shows more.
    MODULES = "modules"


class OpLine(NamedTuple):
    """One operator or kernel, per step; times in milliseconds, None where not recorded."""

    name: str
    kind: str
    # Of the self time of all rows in the list.
    share_pct: float | None
    self_device_ms: float | None
    total_device_ms: float | None
    self_cpu_ms: float | None
    total_cpu_ms: float | None
    calls: float
    # Allocated minus freed.
    memory_bytes: float | None


class WorkChangeLine(NamedTuple):
    """One operator, kernel or module in two profiles; self time per step in milliseconds, None where it is
    missing in one of them."""

    name: str
    kind: str | None
    before_ms: float | None
    after_ms: float | None
    difference_ms: float
    # Relative to before; None without before.
    change_pct: float | None


L = TypeVar("L", OpLine, WorkChangeLine)


def works(rows: Sequence[ProfileOpRow]) -> list[Works]:
    """Return the lists with rows."""
    return [one for one in (Works.OPERATORS, Works.KERNELS) if any(_is(row, one) for row in rows)]


def lines(profile: ProfileRow, rows: Sequence[ProfileOpRow], listed: Works) -> list[OpLine]:
    """Return the operators or the kernels, by self time in descending order."""
    chosen = sorted((row for row in rows if _is(row, listed)), key=lambda row: -own_ns(row, profile))
    total = sum(own_ns(row, profile) for row in chosen)
    return [_line(profile, row, total) for row in chosen]


def parts(profile: ProfileRow, rows: Sequence[ProfileOpRow], listed: Works) -> list[ProfilePart]:
    """Return the operators or the kernels with their self time, for a comparison of profiles. A name with
    two kinds of work, as aten::add in the model and in the optimizer, makes two parts: the key of a part is
    its name and kind."""
    sums: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        if _is(row, listed):
            key = f"{row.name}{_SEPARATOR}{row.kind}"
            sums[key] += own_ns(row, profile)
            calls[key] += row.calls
    return [ProfilePart(key, time_ns, None, calls[key]) for key, time_ns in sums.items()]


def change_lines(compared: ProfileComparison) -> list[WorkChangeLine]:
    """Return the changes between `parts`, or modules, the largest first."""
    changes = []
    for one in compared.changes:
        name, _, kind = one.name.partition(_SEPARATOR)
        changes.append(
            WorkChangeLine(
                name=name or "(the model itself)",
                kind=kind or None,
                before_ms=None if one.before_ns is None else one.before_ns / _MS,
                after_ms=None if one.after_ns is None else one.after_ns / _MS,
                difference_ms=one.difference_ns / _MS,
                change_pct=one.percent,
            )
        )
    return changes


def matching(rows: Sequence[L], search: str) -> list[L]:
    """Return the lines with every word of `search` in their name or kind, ignoring case."""
    terms = search.casefold().split()
    return [
        line for line in rows if all(word in f"{line.name} {line.kind or ''}".casefold() for word in terms)
    ]


def _is(row: ProfileOpRow, listed: Works) -> bool:
    return bool(row.is_kernel) == (listed is Works.KERNELS)


def _line(profile: ProfileRow, row: ProfileOpRow, total: int) -> OpLine:
    steps = profile.steps
    return OpLine(
        name=row.name,
        kind=row.kind,
        share_pct=100 * own_ns(row, profile) / total if total else None,
        self_device_ms=_ms(row.self_device_ns, steps),
        total_device_ms=_ms(row.total_device_ns, steps),
        self_cpu_ms=None if row.is_kernel else _ms(row.self_cpu_ns, steps),
        total_cpu_ms=None if row.is_kernel else _ms(row.total_cpu_ns, steps),
        calls=row.calls / steps,
        memory_bytes=None if row.self_bytes is None else row.self_bytes / steps,
    )


def _ms(time_ns: int | None, steps: int) -> float | None:
    return None if time_ns is None else time_ns / steps / _MS

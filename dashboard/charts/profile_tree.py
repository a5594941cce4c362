"""The time of a profile as an icicle chart: by phase and module, or by call stack."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dashboard.charts.icicle import GRAY, Node, figure, shade
from dashboard.charts.theme import LIGHT, RUNS
from harness import words
from harness.analysis.profiles import own_ns
from harness.analysis.timing.phases import part_label
from harness.records.profile import ProfileModuleRow, ProfileRow, ProfileStackRow
from harness.records.run import Phase

_OTHER = "other"
_ORDER = (*(phase.value for phase in Phase), _OTHER)
_WHOLE = "all work"
# Levels drawn at once; a click shows deeper ones.
_LEVELS, _STACK_LEVELS = 5, 7
_LEVEL_PX, _BAR_PX = 66, 24
# A level with a smaller share of the time is drawn only after a click.
_MIN_LEVEL_SHARE = 0.03

Path = tuple[str, ...]


class _Leaf(NamedTuple):
    """A path with its self time and its description."""

    path: Path
    self_ns: int
    details: str


def by_module(profile: ProfileRow, rows: Sequence[ProfileModuleRow]) -> dict[str, Any] | None:
    """Build the chart of phases and their nested modules; None without recorded time."""
    leaves = [_of_module(profile, row) for row in rows]
    rank = {name: at for at, name in enumerate(_ORDER)}
    leaves.sort(key=lambda leaf: (rank.get(leaf.path[0], len(rank)), [_natural(part) for part in leaf.path]))
    colors = {phase.value: LIGHT[phase.value] for phase in Phase} | {_OTHER: LIGHT["residual"]}
    return _figure(profile, leaves, colors, "modules", _LEVELS)


def by_stack(profile: ProfileRow, rows: Sequence[ProfileStackRow]) -> dict[str, Any] | None:
    """Build the chart of call stacks, outermost line first, with operators as leaves. Outer lines common to
    all stacks are removed. None without recorded time."""
    stacks = [(tuple(row.stack.splitlines()) or ("(no line)",), row) for row in rows]
    common = _common([path[:-1] for path, _ in stacks])
    leaves = [
        _Leaf(path[common:], own_ns(row, profile), f"per step; {_calls(profile, row.calls)}")
        for path, row in stacks
    ]
    branches = dict.fromkeys(leaf.path[0] for leaf in leaves)
    colors = {name: LIGHT[RUNS[at % len(RUNS)]] for at, name in enumerate(branches)}
    return _figure(profile, leaves, colors, "stacks", _STACK_LEVELS)


def _of_module(profile: ProfileRow, row: ProfileModuleRow) -> _Leaf:
    parts = tuple(row.module.split(".")) if row.module else ()
    if row.module == f"<{part_label(row.phase)}>":  # The phase itself, outside of all modules.
        parts = ()
    kind = f"{row.class_name}, " if row.class_name else ""
    itself = words.milliseconds(own_ns(row, profile) / profile.steps)
    return _Leaf((row.phase, *parts), own_ns(row, profile), f"per step; {kind}self time {itself}")


def _calls(profile: ProfileRow, calls: int) -> str:
    return f"{words.figure(calls / profile.steps, 3)} calls"


def _figure(
    profile: ProfileRow,
    leaves: Sequence[_Leaf],
    colors: Mapping[str, str],
    name: str,
    most_levels: int,
) -> dict[str, Any] | None:
    own: dict[Path, int] = {(): 0}
    details: dict[Path, str] = {}
    for leaf in leaves:
        for end in range(1, len(leaf.path) + 1):
            own.setdefault(leaf.path[:end], 0)
        own[leaf.path] += leaf.self_ns
        details[leaf.path] = leaf.details
    whole = _with_children(own)
    if not whole[()]:
        return None
    nodes = [
        Node(
            key=_key(path),
            parent=_key(path[:-1]) if path else "",
            label=_label(path),
            value=whole[path],
            text=_text(profile, whole[path], whole[()]),
            details=details.get(path, "per step"),
            color=shade(colors.get(path[0], GRAY), len(path) - 1) if path else GRAY,
        )
        for path in own
        if whole[path] > 0
    ]
    levels = min(most_levels, _deepest(whole))
    height = _BAR_PX + _LEVEL_PX * levels
    return figure(nodes, f"{profile.profile_id}/{name}", height, levels)


def _deepest(whole: Mapping[Path, int]) -> int:
    """Return the number of levels with enough time to be drawn."""
    levels: Counter[int] = Counter()
    for path, time_ns in whole.items():
        levels[len(path)] += time_ns
    return 1 + max(level for level, time_ns in levels.items() if time_ns >= _MIN_LEVEL_SHARE * whole[()])


def _with_children(own: Mapping[Path, int]) -> dict[Path, int]:
    whole = dict(own)
    for path in sorted(own, key=len, reverse=True):
        if path:
            whole[path[:-1]] += whole[path]
    return whole


def _text(profile: ProfileRow, time_ns: int, all_ns: int) -> str:
    share = words.percent(100 * time_ns / all_ns)
    return f"{words.milliseconds(time_ns / profile.steps)} · {share}"


def _key(path: Path) -> str:
    """Return the readable path; unique, since every path begins with its phase."""
    head = part_label(path[0]) if path else _WHOLE
    return " › ".join([head, *path[1:]])


def _label(path: Path) -> str:
    if not path:
        return _WHOLE
    last = part_label(path[0]) if len(path) == 1 else path[-1]
    if last.startswith("<") and last.endswith(">"):
        last = last[1:-1]
    return last.rpartition("/")[2]


def _common(paths: Sequence[Path]) -> int:
    """Return the number of leading frames common to all paths."""
    count = 0
    for frames in zip(*paths, strict=False):
        if len(set(frames)) > 1:
            break
        count += 1
    return count


def _natural(part: str) -> tuple[bool, int, str]:
    """Return a sort key that puts "2" before "10"."""
    return (part.isdigit(), int(part) if part.isdigit() else 0, part)

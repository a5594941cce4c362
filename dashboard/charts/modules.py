"""Memory of each module of a model, as an icicle chart and as a table."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from dashboard.charts.icicle import GRAY, Node, figure, shade
from dashboard.charts.theme import LIGHT, RUNS
from harness import words
from harness.records.memory import ModuleMemoryRow


class MemoryKind(StrEnum):
    """A kind of memory of a module, or their sum."""

    ALL = "total"
    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    ACTIVATIONS = "activations"


_OF: Mapping[MemoryKind, Callable[[ModuleMemoryRow], int | None]] = {
    MemoryKind.PARAMETERS: lambda row: row.parameter_bytes + row.buffer_bytes,
    MemoryKind.GRADIENTS: lambda row: row.gradient_bytes,
    MemoryKind.OPTIMIZER: lambda row: row.optimizer_bytes,
    MemoryKind.ACTIVATIONS: lambda row: row.activation_bytes,
}


class ModuleLine(NamedTuple):
    """One module in the table; sizes in bytes, None where unknown."""

    module: str
    kind: str
    parameters: int | None
    gradients: int | None
    optimizer: int | None
    activations: int | None
    together: int


def size_of(row: ModuleMemoryRow, part: MemoryKind) -> int | None:
    """Return the module's own memory of this kind, in bytes; None where unknown."""
    if part is not MemoryKind.ALL:
        return _OF[part](row)
    return sum(_OF[each](row) or 0 for each in _OF)


def named_parts(rows: Sequence[ModuleMemoryRow]) -> list[MemoryKind]:
    """Return the kinds of memory with data, the total first."""
    return [part for part in MemoryKind if any(size_of(row, part) for row in rows)]


def table_lines(rows: Sequence[ModuleMemoryRow]) -> list[ModuleLine]:
    """Return the modules with memory of their own, the largest first."""
    lines = [
        ModuleLine(
            row.module or "(the model itself)",
            row.kind,
            size_of(row, MemoryKind.PARAMETERS),
            size_of(row, MemoryKind.GRADIENTS),
            size_of(row, MemoryKind.OPTIMIZER),
            size_of(row, MemoryKind.ACTIVATIONS),
            size_of(row, MemoryKind.ALL) or 0,
        )
        for row in rows
    ]
    return sorted((line for line in lines if line.together), key=lambda line: -line.together)


def icicle(rows: Sequence[ModuleMemoryRow], part: MemoryKind) -> dict[str, Any]:
    """Build the chart of nested modules for st.plotly_chart, each as wide as its memory with its children."""
    own = _own(rows, part)
    whole = _with_children(own)
    paths = [path for path in sorted(whole, key=_natural) if whole[path] > 0]
    kinds = {row.module: row.kind for row in rows}
    total = max(whole.get("", 0), 1)
    colors = _colors(paths)
    nodes = [
        Node(
            key=path or "(model)",
            parent=_parent_id(path),
            label=_name(path, kinds),
            value=whole[path],
            text=f"{words.size(whole[path])} · {words.percent(100 * whole[path] / total)}",
            details=_details(path, kinds, own.get(path, 0)),
            color=color,
        )
        for path, color in zip(paths, colors, strict=True)
    ]
    return figure(nodes, part.value, height=330)


def _own(rows: Sequence[ModuleMemoryRow], part: MemoryKind) -> dict[str, int]:
    """Return each module's own memory, with zero for the containers between them."""
    own: dict[str, int] = {"": 0}
    for row in rows:
        path = row.module
        while path:
            own.setdefault(path, 0)
            path = path.rpartition(".")[0]
        own[row.module] = own.get(row.module, 0) + (size_of(row, part) or 0)
    return own


def _with_children(own: Mapping[str, int]) -> dict[str, int]:
    whole = dict(own)
    for path in sorted(own, key=lambda path: -path.count(".") if path else 1):
        if path:
            whole[path.rpartition(".")[0]] += whole[path]
    return whole


def _natural(path: str) -> list[tuple[bool, int, str]]:
    """Return a sort key that puts "blocks.2" before "blocks.10"."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in path.split(".")]


def _parent_id(path: str) -> str:
    if not path:
        return ""
    return path.rpartition(".")[0] or "(model)"


def _name(path: str, kinds: Mapping[str, str]) -> str:
    return path.rpartition(".")[2] if path else kinds.get("", "model")


def _details(path: str, kinds: Mapping[str, str], own: int) -> str:
    kind = kinds.get(path, "container")
    return f"{kind}, own memory {words.size(own)}"


def _colors(paths: Sequence[str]) -> list[str]:
    """Return a color for each path: one per branch of the first level, grayer further in."""
    branches = list(dict.fromkeys(_branch(path) for path in paths if path))
    colors = []
    for path in paths:
        if not path:
            colors.append(GRAY)
            continue
        color = LIGHT[RUNS[branches.index(_branch(path)) % len(RUNS)]]
        colors.append(shade(color, path.count(".")))
    return colors


def _branch(path: str) -> str:
    return path.partition(".")[0]

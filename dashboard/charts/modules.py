"""What each module of a model holds, as an icicle chart and as a table."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from dashboard.charts.axes import FONT
from dashboard.charts.theme import LIGHT, RUNS
from harness import words
from harness.memory_records import ModuleMemoryRow

MIB = 2.0**20
_STRONG, _WEAK = 0.9, 0.35
"""How much of its colour a module of the first level has, and one of the fourth; the rest is grey."""
_GREY = "#6b7366"


class Part(StrEnum):
    """What of a module's memory is looked at."""

    ALL = "all of it"
    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    ACTIVATIONS = "activations"


_OF: Mapping[Part, Callable[[ModuleMemoryRow], int | None]] = {
    Part.PARAMETERS: lambda row: row.parameter_bytes + row.buffer_bytes,
    Part.GRADIENTS: lambda row: row.gradient_bytes,
    Part.OPTIMIZER: lambda row: row.optimizer_bytes,
    Part.ACTIVATIONS: lambda row: row.activation_bytes,
}


class Line(NamedTuple):
    """One module in the table; sizes in MiB, None where not known."""

    module: str
    kind: str
    parameters: float | None
    gradients: float | None
    optimizer: float | None
    activations: float | None
    together: float


def size_of(row: ModuleMemoryRow, part: Part) -> int | None:
    """What the module itself holds of this, in bytes; None where it is not known."""
    if part is not Part.ALL:
        return _OF[part](row)
    return sum(_OF[each](row) or 0 for each in _OF)


def known_parts(rows: Sequence[ModuleMemoryRow]) -> list[Part]:
    """The parts of which something is known, all of it first."""
    return [part for part in Part if any(size_of(row, part) for row in rows)]


def table(rows: Sequence[ModuleMemoryRow]) -> list[Line]:
    """The modules that hold something themselves, the largest first."""
    lines = [
        Line(
            row.module or "(the model itself)",
            row.kind,
            _mib(size_of(row, Part.PARAMETERS)),
            _mib(size_of(row, Part.GRADIENTS)),
            _mib(size_of(row, Part.OPTIMIZER)),
            _mib(size_of(row, Part.ACTIVATIONS)),
            _mib(size_of(row, Part.ALL)) or 0.0,
        )
        for row in rows
    ]
    return sorted((line for line in lines if line.together), key=lambda line: -line.together)


def _mib(size: int | None) -> float | None:
    return None if size is None else size / MIB


def icicle(rows: Sequence[ModuleMemoryRow], part: Part) -> dict[str, Any]:
    """The modules inside each other, each as wide as what it holds with its children. For st.plotly_chart.

    Its colours are the same in light and dark, since a chart of this kind does not follow a switch.
    """
    own = _own(rows, part)
    whole = _with_children(own)
    paths = [path for path in sorted(whole, key=_natural) if whole[path] > 0]
    kinds = {row.module: row.kind for row in rows}
    total = max(whole.get("", 0), 1)
    texts = [f"{words.size(whole[path])} · {words.percent(100 * whole[path] / total)}" for path in paths]
    trace = {
        "type": "icicle",
        "ids": [path or "(model)" for path in paths],
        "labels": [_name(path, kinds) for path in paths],
        "parents": [_parent_id(path) for path in paths],
        "values": [whole[path] for path in paths],
        "branchvalues": "total",
        "text": texts,
        "textinfo": "label+text",
        "customdata": [_told(path, kinds, own.get(path, 0)) for path in paths],
        "hovertemplate": "<b>%{id}</b><br>%{text}<br>%{customdata}<extra></extra>",
        "tiling": {"orientation": "v", "pad": 1},
        "sort": False,
        "maxdepth": 4,
        "marker": {"colors": _colors(paths), "line": {"width": 0}},
        "pathbar": {"visible": True, "thickness": 20, "side": "top"},
    }
    layout = {
        "height": 330,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "paper_bgcolor": LIGHT["paper"],
        "font": {"family": FONT, "size": 12},
        "uirevision": part.value,
    }
    return {"data": [trace], "layout": layout}


def _own(rows: Sequence[ModuleMemoryRow], part: Part) -> dict[str, int]:
    """What each module holds itself; the containers between them hold nothing and are there all the same."""
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
    """Sorts "blocks.2" before "blocks.10"."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in path.split(".")]


def _parent_id(path: str) -> str:
    if not path:
        return ""
    return path.rpartition(".")[0] or "(model)"


def _name(path: str, kinds: Mapping[str, str]) -> str:
    return path.rpartition(".")[2] if path else kinds.get("", "model")


def _told(path: str, kinds: Mapping[str, str], own: int) -> str:
    kind = kinds.get(path, "container")
    return f"{kind}, itself {words.size(own)}"


def _colors(paths: Sequence[str]) -> list[str]:
    """A colour for each branch of the first level, greyer further in."""
    branches = list(dict.fromkeys(_branch(path) for path in paths if path))
    colors = []
    for path in paths:
        if not path:
            colors.append(_GREY)
            continue
        color = LIGHT[RUNS[branches.index(_branch(path)) % len(RUNS)]]
        deep = min(path.count("."), 3)
        colors.append(_faded(color, _STRONG - deep * (_STRONG - _WEAK) / 3))
    return colors


def _branch(path: str) -> str:
    return path.partition(".")[0]


def _faded(color: str, strength: float) -> str:
    """`color` mixed with grey, opaque, so that the label's contrast is right on any page."""
    mixed = (
        round(strength * int(color[at : at + 2], 16) + (1 - strength) * int(_GREY[at : at + 2], 16))
        for at in (1, 3, 5)
    )
    return "#" + "".join(f"{part:02x}" for part in mixed)

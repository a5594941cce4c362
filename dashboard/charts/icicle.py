"""Things inside each other as an icicle chart: each as wide as what it has with its children."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.charts.axes import FONT
from dashboard.charts.theme import LIGHT

GREY = "#6b7366"
_STRONG, _WEAK = 0.9, 0.35
"""How much of its colour a thing of the first level has, and one of the fourth; the rest is grey."""
_DEEPEST = 3


class Node(NamedTuple):
    """One thing in the chart; `parent` is the id of what it lies in, empty for the outermost."""

    key: str
    parent: str
    label: str
    value: float
    """With its children."""
    text: str
    """Under the label, and in the hover."""
    told: str
    """Below that in the hover."""
    color: str


def figure(nodes: Sequence[Node], revision: str, height: int, levels: int = 4) -> dict[str, Any]:
    """The chart, for st.plotly_chart; a click on a thing zooms into it.

    Its colours are the same in light and dark, since a chart of this kind does not follow a switch.
    """
    trace = {
        "type": "icicle",
        "ids": [plain(node.key) for node in nodes],
        "labels": [plain(node.label) for node in nodes],
        "parents": [plain(node.parent) for node in nodes],
        "values": [node.value for node in nodes],
        "branchvalues": "total",
        "text": [plain(node.text) for node in nodes],
        "textinfo": "label+text",
        "customdata": [plain(node.told) for node in nodes],
        "hovertemplate": "<b>%{id}</b><br>%{text}<br>%{customdata}<extra></extra>",
        "tiling": {"orientation": "v", "pad": 1},
        "sort": False,
        "maxdepth": levels,
        "marker": {"colors": [node.color for node in nodes], "line": {"width": 0}},
        "pathbar": {"visible": True, "thickness": 20, "side": "top"},
    }
    layout = {
        "height": height,
        "margin": {"l": 0, "r": 0, "t": 0, "b": 0},
        "uniformtext": {"minsize": 9, "mode": "hide"},
        "paper_bgcolor": LIGHT["paper"],
        "font": {"family": FONT, "size": 12},
        "hoverlabel": {"font": {"family": FONT, "size": 12}},
        "uirevision": revision,
    }
    return {"data": [trace], "layout": layout}


def plain(text: str) -> str:
    """Plotly reads a little HTML in what it is given to show; names of modules and functions are text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shade(color: str, level: int) -> str:
    """`color` for a thing so many levels inside the first, greyer further in; opaque, so that the label's
    contrast is right on any page."""
    strength = _STRONG - min(level, _DEEPEST) * (_STRONG - _WEAK) / _DEEPEST
    mixed = (
        round(strength * int(color[at : at + 2], 16) + (1 - strength) * int(GREY[at : at + 2], 16))
        for at in (1, 3, 5)
    )
    return "#" + "".join(f"{part:02x}" for part in mixed)

"""Icicle charts: nested nodes, each as wide as its value including its children."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.charts.axes import FONT
from dashboard.charts.theme import LIGHT, contrast

GRAY = "#6b7366"
# Share of the branch color in a node of the first and of the fourth level; the rest is gray.
_STRONG, _WEAK = 0.9, 0.35
_DEEPEST = 3


class Node(NamedTuple):
    """One node of the chart; `parent` is the key of the enclosing node, empty for the outermost."""

    key: str
    parent: str
    label: str
    # Including its children.
    value: float
    # Under the label, and in the hover.
    text: str
    # Second line of the hover.
    details: str
    color: str


def figure(nodes: Sequence[Node], revision: str, height: int, levels: int = 4) -> dict[str, Any]:
    """Build the chart, for st.plotly_chart; a click on a node zooms into it.

    Its colors are the same in light and dark, since a chart of this kind does not follow a theme switch.
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
        "customdata": [plain(node.details) for node in nodes],
        "hovertemplate": "<b>%{id}</b><br>%{text}<br>%{customdata}<extra></extra>",
        "tiling": {"orientation": "v", "pad": 1},
        "sort": False,
        "maxdepth": levels,
        "marker": {"colors": [node.color for node in nodes], "line": {"width": 0}},
        # Plotly's own choice is white or a dark gray, which often has too little contrast.
        "textfont": {"color": [_text_color(node.color) for node in nodes]},
        # Plotly's default of 0.7 lets the page through, on which the white text cannot be read.
        "leaf": {"opacity": 1},
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


def _text_color(ground: str) -> str:
    return max("#ffffff", "#000000", key=lambda color: contrast(color, ground))


def plain(text: str) -> str:
    """Escape `text`: Plotly reads some HTML, and names of modules and functions are text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def shade(color: str, level: int) -> str:
    """Return `color` for a node `level` levels below the first, grayer further in; opaque, so that the
    label's contrast is right on any page."""
    strength = _STRONG - min(level, _DEEPEST) * (_STRONG - _WEAK) / _DEEPEST
    mixed = (
        round(strength * int(color[at : at + 2], 16) + (1 - strength) * int(GRAY[at : at + 2], 16))
        for at in (1, 3, 5)
    )
    return "#" + "".join(f"{part:02x}" for part in mixed)

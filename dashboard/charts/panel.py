"""The parts of a chart of one panel, without steps on its x axis."""

from collections.abc import Sequence
from typing import Any

from dashboard.charts.axes import CONFIG, WHOLE_NUMBERS


def panel_axis(title: str) -> dict[str, Any]:
    """Return an axis with its title."""
    return {
        "title": {"text": title, "standoff": 6, "font": {"size": 12, "color": "@muted"}},
        "tickfont": {"color": "@muted"},
        "gridcolor": "@grid",
        "linecolor": "@axis",
        "zeroline": False,
        **WHOLE_NUMBERS,
    }


def panel(data: Sequence[Any], layout: dict[str, Any], label: str, height: int) -> dict[str, Any]:
    """Return the drawing of a figure; `label` describes it to a screen reader, `height` is in pixels."""
    return {
        "data": list(data),
        "layout": {"shapes": [], "annotations": [], **layout},
        "config": CONFIG,
        "markers": [],
        "extent": [0.0, 1.0],
        "label": label,
        "footer": "",
        "last_step": None,
        "height": height,
        "fill": False,
    }

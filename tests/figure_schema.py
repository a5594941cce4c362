"""Validation of figures against plotly's own schema."""

from typing import Any

import plotly.graph_objects as go

from dashboard.charts.theme import LIGHT


def validate_figure(figure: dict[str, Any]) -> None:
    """Raise ValueError if plotly rejects the figure, and KeyError for an unknown color of the theme."""
    go.Figure(_themed({"data": figure["data"], "layout": figure["layout"]}))


def _themed(value: Any) -> Any:
    """Replace names of colors ("@text") by colors, as the browser does."""
    if isinstance(value, str) and value.startswith("@"):
        return LIGHT[value.removeprefix("@")]
    if isinstance(value, dict):
        return {key: _themed(item) for key, item in value.items()}
    return [_themed(item) for item in value] if isinstance(value, list | tuple) else value

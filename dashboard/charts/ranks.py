"""The chart of how late each rank is, step by step: a heat map of ranks and steps."""

from itertools import pairwise
from typing import Any

import numpy as np

from dashboard.charts.axes import frame
from dashboard.charts.panel import panel, panel_axis
from harness import words
from harness.analysis.ranks.stragglers import LEAST_SHARE, Floats, RankComparison

_MS = 1e6
# More steps share a column.
_MOST_COLUMNS = 50
# Ranks that are later than this percentile of all cells have the strongest color.
_STRONGEST_PCT = 98.0
_ROW_PX, _AROUND_PX = 34, 60


def heat_map(comparison: RankComparison, revision: str) -> dict[str, Any]:
    """Build the heat map, for live_plotly: a rectangle per rank and column of steps, colored by how much
    longer the rank's own time is than the median rank's."""
    edges = np.linspace(0, comparison.steps, min(comparison.steps, _MOST_COLUMNS) + 1).astype(int)
    late_ms = np.maximum(_by_column(np.array(comparison.late_ns), edges), 0.0) / _MS
    steps = comparison.step_numbers
    spans = [(steps[a], steps[b - 1]) for a, b in pairwise(edges)]
    # A difference that is not worth naming has a weak color, however alike the ranks are.
    step_ms = float(np.median([rank.step_ns for rank in comparison.ranks])) / _MS
    strongest_ms = max(2 * LEAST_SHARE * step_ms, float(np.percentile(late_ms, _STRONGEST_PCT)))
    names = [f"rank\u00a0{rank.rank}" for rank in comparison.ranks]
    traces = [
        _row(name, late, spans, strongest_ms, has_scale=at == 0)
        for at, (name, late) in enumerate(zip(names, late_ms, strict=True))
    ]
    layout = frame(revision, top_px=14)
    del layout["hoversubplots"]
    layout |= {
        "dragmode": False,
        "showlegend": False,
        "barmode": "overlay",
        "bargap": 0.0,
        "hovermode": "closest",
        "margin": {"l": 74, "r": 16, "t": 14, "b": 40},
        "xaxis": panel_axis("step") | {"fixedrange": True, "range": [steps[0], steps[-1] + 1]},
        "yaxis": panel_axis("")
        | {"autorange": "reversed", "fixedrange": True, "type": "category", "showgrid": False},
    }
    spoken = "; ".join(
        f"{name} {words.duration(float(np.median(late)) * _MS)}"
        for name, late in zip(names, late_ms, strict=True)
    )
    label = f"By how much each rank is later than the median rank, by step. In the median: {spoken}."
    return panel(traces, layout, label, _AROUND_PX + _ROW_PX * len(names))


def _by_column(late_ns: Floats, edges: np.ndarray[Any, Any]) -> Floats:
    """Return the means of the steps between `edges`, by rank."""
    sums: Floats = np.add.reduceat(late_ns, edges[:-1], axis=1)
    return sums / np.diff(edges)


def _row(
    name: str, late_ms: Floats, spans: list[tuple[int, int]], strongest_ms: float, *, has_scale: bool
) -> dict[str, Any]:
    bar_scale = {
        "title": {"text": "ms", "side": "top", "font": {"size": 12, "color": "@muted"}},
        "tickfont": {"color": "@muted"},
        "thickness": 10,
        "len": 1.0,
        "outlinewidth": 0,
        "nticks": 3,
    }
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": [name] * len(spans),
        "x": [last + 1 - first for first, last in spans],
        "base": [first for first, _ in spans],
        "marker": {
            "color": late_ms.astype(np.float32),
            "colorscale": [[0, "@grid"], [1, "@peak"]],
            "cmin": 0,
            "cmax": strongest_ms,
            "showscale": has_scale,
            "line": {"width": 0},
            **({"colorbar": bar_scale} if has_scale else {}),
        },
        "hovertemplate": [
            f"{name}, {words.step_range(first, last)}: {words.duration(late * _MS)} later than the median "
            "rank<extra></extra>"
            for late, (first, last) in zip(late_ms.tolist(), spans, strict=True)
        ],
    }

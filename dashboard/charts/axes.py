"""Parts shared by all charts: one x axis of steps, stacked panels, legend, hover and notes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dashboard.buckets import Array

# Of the ticks of an axis: plotly.js would write 30,000 as 30k.
WHOLE_NUMBERS: Mapping[str, Any] = {"exponentformat": "none", "separatethousands": True}
FONT = "'Source Sans', 'Source Sans Pro', sans-serif"
# Of a time in the hover: also a wait of less than a microsecond is not rounded to zero.
TIME_NUMBER = ",.4~r} ms"
_FEW_STEPS = 6
CONFIG: Mapping[str, Any] = {
    "displaylogo": False,
    "responsive": False,
    "scrollZoom": False,
    "doubleClick": "reset",
    # Nothing leaves this machine: plotly.js would offer to upload the chart.
    "showSendToCloud": False,
    "plotlyServerURL": "",
}


def memory_unit(top_bytes: float) -> tuple[float, str]:
    """Return the bytes and the name of the unit for an axis of memory up to `top_bytes`."""
    return (2.0**30, "GiB") if top_bytes >= 2.0**29 else (2.0**20, "MiB")


def line(
    name: str, x: Array, y: Array, axis: str, color: str, number: str, width: float = 1.5, **more: Any
) -> dict[str, Any]:
    """Build a trace. `number` is the d3 format of its values and their unit, as in ",.2f} GiB". Values that
    all have gaps around them, through which no line leads, are drawn as points."""
    is_finite = np.isfinite(y)
    return {
        "type": "scatter",
        "mode": "lines" if (is_finite[1:] & is_finite[:-1]).any() else "markers",
        "name": name,
        "x": x,
        "y": y.astype(np.float32),
        "yaxis": axis,
        "line": {"color": color, "width": width},
        "marker": {"color": color, "size": 6},
        "hovertemplate": "%{y:" + number,
        **more,
    }


def frame(revision: str, top_px: int = 66) -> dict[str, Any]:
    """Build the layout without axes, shapes and annotations. Zoom and legend persist while `revision` is the
    same. `top_px` is the height of the legend and of the labels of markers."""
    return {
        "uirevision": revision,
        "font": {"family": FONT, "size": 12, "color": "@text"},
        "paper_bgcolor": "@paper",
        "plot_bgcolor": "@paper",
        "margin": {"l": 58, "r": 16, "t": top_px, "b": 36},
        "showlegend": True,
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": 12, "color": "@text"},
            "bgcolor": "@paper",
            "itemwidth": 30,
        },
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverdistance": -1,
        "hoverlabel": {
            "bgcolor": "@hover",
            "bordercolor": "@axis",
            "font": {"size": 12, "color": "@text"},
            "namelength": -1,
        },
        "modebar": {
            "orientation": "h",
            "bgcolor": "@paper",
            "color": "@axis",
            "activecolor": "@allocated",
            "remove": ["lasso2d", "select2d", "autoScale2d", "toImage"],
        },
        "dragmode": "zoom",
    }


def step_axis(extent: Sequence[float]) -> dict[str, Any]:
    """Build the axis of steps from the first to the last one drawn. Between two of a few there is no tick."""
    first, last = extent
    return x_axis() | ({"dtick": 1} if last - first < _FEW_STEPS else {})


def x_axis() -> dict[str, Any]:
    """Build the axis of steps, or of what they add up to, under the lowest panel."""
    return {
        # Free: plotly.js moves an axis that is anchored to a panel without values.
        "anchor": "free",
        "position": 0,
        "title": {"text": "step", "standoff": 4, "font": {"size": 12, "color": "@muted"}},
        "tickfont": {"color": "@muted"},
        "gridcolor": "@grid",
        "linecolor": "@axis",
        "zeroline": False,
        "hoverformat": ",d",
        "unifiedhovertitle": {"text": "step %{x:,d}"},
        "showspikes": True,
        "spikemode": "across",
        "spikethickness": -2,
        "spikedash": "solid",
        "spikecolor": "@marker",
        "spikesnap": "hovered data",
        **WHOLE_NUMBERS,
    }


def y_axis(title: str, domain: tuple[float, float], ticks: int = 4) -> dict[str, Any]:
    """Build a panel's y axis, from zero up. It scales automatically; zooming is along the steps."""
    return {
        "domain": list(domain),
        "title": {"text": title, "standoff": 8, "font": {"size": 12, "color": "@muted"}},
        "tickfont": {"color": "@muted"},
        "gridcolor": "@grid",
        "zeroline": True,
        "zerolinecolor": "@axis",
        "nticks": ticks,
        "rangemode": "tozero",
        "fixedrange": True,
        "anchor": "x",
        **WHOLE_NUMBERS,
    }


def value_axis(
    title: str, domain: tuple[float, float], ticks: int = 5, values: Sequence[Array] = ()
) -> dict[str, Any]:
    """Build the y axis of values without a unit, such as losses and learning rates: not from zero up, and
    1e-4 in place of 100μ. With fewer than 5 ticks plotly.js may draw one alone. `values` are all drawn in the
    panel, for the range of a constant: plotly.js would draw 0.01 from -0.99 to 1.01."""
    own = {"rangemode": "normal", "zeroline": False, "exponentformat": "e"}
    return y_axis(title, domain, ticks) | own | _range_of_constant(values)


def _range_of_constant(values: Sequence[Array]) -> dict[str, Any]:
    finite = [part[np.isfinite(part)] for part in values]
    numbers = np.concatenate(finite) if finite else np.empty(0)
    if not len(numbers) or numbers[0] == 0 or not np.allclose(numbers, numbers[0], rtol=1e-9, atol=0):
        return {}
    return {"range": sorted((0.8 * float(numbers[0]), 1.2 * float(numbers[0])))}


def note(text: str, y: float, *, yref: str = "paper", **more: Any) -> dict[str, Any]:
    """Build a small text in a panel. Plotly reads some markup: `text` must not come from users."""
    font = {"size": 11, "color": "@muted"}
    return {"text": text, "xref": "paper", "yref": yref, "y": y, "showarrow": False, "font": font, **more}

"""The comparison of several runs: step time, peak memory and loss by step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard.buckets import BucketTable
from dashboard.charts.axes import CONFIG, frame, line, x_axis, y_axis
from dashboard.charts.theme import RUNS

_GIB = 2.0**30
_MS = 1e6


class Compared(NamedTuple):
    """One run in the comparison."""

    name: str
    steps: BucketTable


def figure(runs: Sequence[Compared]) -> dict[str, Any]:
    """Build the figure's head, for live_plotly. A run has one color in all panels and one legend entry."""
    traces = []
    for at, run in enumerate(runs):
        traces += _traces(run, f"@{RUNS[at % len(RUNS)]}", group=str(at))
    starts = [float(run.steps.step[0]) for run in runs if len(run.steps.step)]
    ends = [float(run.steps.step[-1]) for run in runs if len(run.steps.step)]
    layout = {
        **frame("/".join(run.name for run in runs), top_px=34),
        "xaxis": x_axis("y3"),
        "yaxis": y_axis("step, ms", (0.7, 1.0)),
        "yaxis2": y_axis("peak, GiB", (0.36, 0.64)),
        "yaxis3": y_axis("loss", (0.0, 0.3)) | {"rangemode": "normal", "zeroline": False},
        "shapes": [],
        "annotations": [],
    }
    return {
        "data": traces,
        "layout": layout,
        "config": CONFIG,
        "markers": [],
        "extent": [min(starts, default=0.0), max(ends, default=1.0)],
        "label": f"Comparison of {len(runs)} runs: step time, peak memory and loss by step.",
        "footer": "Mean per bucket of steps; for the peak, the maximum.",
        "last_step": None,
        "height": 460,
        "fill": False,
    }


def _traces(run: Compared, color: str, group: str) -> list[dict[str, Any]]:
    x = run.steps.step
    name = run.name.replace("&", "&amp;").replace("<", "&lt;")  # Plotly reads a little HTML in names.
    step, loss = run.steps.band("step_ns").mean / _MS, run.steps.band("loss").mean
    peak = run.steps.band("peak_allocated_bytes").high / _GIB
    shared: dict[str, Any] = {"legendgroup": group}
    return [
        line(name, x, step, "y", color, ",.2f} ms", **shared),
        line(name, x, peak, "y2", color, ",.3f} GiB", showlegend=False, **shared),
        line(name, x, loss, "y3", color, ",.4g}", showlegend=False, **shared),
    ]

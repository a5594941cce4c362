"""Panels of the live chart for the numbers that a script logged, under all others."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dashboard.buckets import Array
from dashboard.charts.axes import CONFIG, frame, line, note, step_axis, value_axis
from dashboard.charts.common_axis import TITLES, common_axis
from dashboard.charts.theme import RUNS
from harness.analysis.compare.curves import CurveAxis
from harness.records.script import PHASE_PREFIX
from harness.words import clip, plural, printable

# Height of one panel, with the space above it.
PANEL_PX = 92
# The same of a panel with several runs.
_OVERLAID_PX = 140
# The part of it that is space.
_GAP = 0.26
_LONGEST_NAME = 60
_FIRST_AXIS = 5


class Scalar(NamedTuple):
    """One scalar in buckets of steps; NaN where a bucket has no finite value."""

    name: str
    step: Array
    low: Array
    mean: Array
    high: Array
    not_finite: int


def figure(scalars: Sequence[Scalar], revision: str) -> dict[str, Any]:
    """Build the head of a figure with these panels alone, for live_plotly."""
    steps = [step for scalar in scalars for step in (scalar.step[:1], scalar.step[-1:]) if len(step)]
    extent = [float(min(steps)[0]), float(max(steps)[0])] if steps else [0.0, 1.0]
    layout = {
        **frame(revision, top_px=24),
        **axes(scalars, 1.0),
        "xaxis": step_axis(extent),
        "shapes": [],
        "annotations": notes(scalars, 1.0),
    }
    return {
        "data": traces(scalars),
        "layout": layout,
        "config": CONFIG,
        "markers": [],
        "extent": extent,
        "label": f"Chart of {plural(len(scalars), 'scalar')} by step.",
        "footer": "Mean per bucket of steps, with the lowest and the highest value.",
        "last_step": None,
        "height": 120 + PANEL_PX * len(scalars),
        "fill": True,
    }


def share(scalars: Sequence[Scalar], other_px: float) -> float:
    """Return the share of the panels' height that belongs to scalars, next to other panels of `other_px`."""
    height = PANEL_PX * len(scalars)
    return height / (height + other_px)


def traces(scalars: Sequence[Scalar]) -> list[dict[str, Any]]:
    """Build the mean of each scalar, and its lowest and highest values where a bucket has several."""
    made = []
    for at, scalar in enumerate(scalars):
        axis, color = f"y{_FIRST_AXIS + at}", f"@{RUNS[(at + 3) % len(RUNS)]}"
        name = _text(scalar.name)
        if np.any(scalar.high > scalar.low):
            for word, values in (("min", scalar.low), ("max", scalar.high)):
                thin = {"opacity": 0.6, "showlegend": False}
                made.append(line(f"{name} {word}", scalar.step, values, axis, color, ",.4~g}", 0.9, **thin))
        made.append(line(name, scalar.step, scalar.mean, axis, color, ",.4~g}", 1.6, showlegend=False))
    return made


def axes(scalars: Sequence[Scalar], part: float) -> Mapping[str, dict[str, Any]]:
    """Build the y axes; the panels take the share `part` of the height, from the bottom up."""
    made = {}
    for at, (scalar, domain) in enumerate(zip(scalars, _domains(scalars, part), strict=True)):
        values = (scalar.low, scalar.mean, scalar.high)
        made[f"yaxis{_FIRST_AXIS + at}"] = value_axis("", domain, values=values)
    return made


def notes(scalars: Sequence[Scalar], part: float) -> list[dict[str, Any]]:
    """Build the name above each panel, and how many of its values are not finite."""
    made = []
    for scalar, (_, top) in zip(scalars, _domains(scalars, part), strict=True):
        text = _text(scalar.name)
        if scalar.name.startswith(PHASE_PREFIX):
            text += ", ms"
        if scalar.not_finite:
            text += f" ({plural(scalar.not_finite, 'value')} not finite)"
        elif not np.isfinite(scalar.mean).any():
            text += " (n/a: no value in these steps)"
        made.append(note(text, top, x=0.002, xanchor="left", yanchor="bottom"))
    return made


def _domains(scalars: Sequence[Scalar], part: float) -> list[tuple[float, float]]:
    return _panels(len(scalars), part)


def _panels(count: int, part: float) -> list[tuple[float, float]]:
    height = part / max(count, 1)
    tops = [part - at * height for at in range(count)]
    return [(max(0.0, top - height), top - _GAP * height) for top in tops]


class RunScalar(NamedTuple):
    """A scalar of one of several runs: its name, the run's name as text, the run's index, the positions of
    its buckets on the common axis, and their means."""

    name: str
    run: str
    at: int
    x: Array
    mean: Array


def overlaid(scalars: Sequence[RunScalar], axis: CurveAxis, revision: str) -> dict[str, Any]:
    """Build the head of a figure with a panel for each name, in which every run has its color, for
    live_plotly. `axis` is the common one."""
    panels = list(dict.fromkeys(scalar.name for scalar in scalars))
    domains = dict(zip(panels, _panels(len(panels), 1.0), strict=True))
    places = np.concatenate([scalar.x for scalar in scalars]) if scalars else np.empty(0)
    extent = [float(np.nanmin(places)), float(np.nanmax(places))] if len(places) else [0.0, 1.0]
    layout: dict[str, Any] = {
        **frame(revision, top_px=40),
        "xaxis": common_axis(axis, extent),
        "shapes": [],
        "annotations": [
            note(_text(name), top, x=0.002, xanchor="left", yanchor="bottom")
            for name, (_, top) in domains.items()
        ],
    }
    for at, domain in enumerate(domains.values()):
        layout[f"yaxis{_FIRST_AXIS + at}"] = value_axis("", domain)
    data, named = [], set[int]()
    for scalar in scalars:
        axis_name, color = f"y{_FIRST_AXIS + panels.index(scalar.name)}", f"@{RUNS[scalar.at % len(RUNS)]}"
        shared: dict[str, Any] = {"legendgroup": str(scalar.at), "showlegend": scalar.at not in named}
        named.add(scalar.at)
        data.append(line(scalar.run, scalar.x, scalar.mean, axis_name, color, ",.4~g}", **shared))
    contents = f"{plural(len(panels), 'scalar')} of {plural(len(named), 'run')}"
    return {
        "data": data,
        "layout": layout,
        "config": CONFIG,
        "markers": [],
        "extent": extent,
        "label": f"Chart of {contents} by {TITLES[axis]}.",
        "footer": "Mean per bucket of steps.",
        "last_step": None,
        "height": 90 + _OVERLAID_PX * len(panels),
        "fill": False,
    }


def _text(name: str) -> str:
    """Return a name as text: Plotly reads a little HTML."""
    return clip(printable(name), _LONGEST_NAME).replace("&", "&amp;").replace("<", "&lt;")

"""The charts of the Profiler page: phases as stacked bars, and the distribution of step times."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dashboard.charts.axes import frame, note
from dashboard.charts.panel import panel, panel_axis
from dashboard.charts.theme import WITH_TEXT
from harness import words
from harness.analysis.timing.phases import ClockTimes, Spread, StepPart, part_label

_MS = 1e6
_BINS = 60
_TICKS = 5
# Steps beyond this percentile share the last bar: a few would flatten the rest.
_CUT_PCT = 99.5


class ClockBar(NamedTuple):
    """One stacked bar: a clock, or a version of the settings."""

    name: str
    times: ClockTimes


def stacked(bars: Sequence[ClockBar], revision: str) -> dict[str, Any]:
    """Build the stacked bars of the mean time of each phase, for live_plotly."""
    parts = [part for part in StepPart if any(bar.times.spread(part) is not None for bar in bars)]
    names = [bar.name.replace(" ", "<br>", 1) for bar in bars]
    traces = [_stack(part, bars, names) for part in parts]
    longest = max(
        (sum(part_times.spread.mean for part_times in bar.times.parts) for bar in bars), default=0.0
    )
    layout = {
        **_plain(revision),
        "barmode": "stack",
        "bargap": 0.34,
        "hovermode": "closest",
        "xaxis": panel_axis("mean time per step, ms")
        | {"range": [0, 1.02 * longest / _MS], "fixedrange": True},
        "yaxis": panel_axis("") | {"autorange": "reversed", "fixedrange": True, "type": "category"},
    }
    spoken = "; ".join(f"{bar.name} {words.duration(bar.times.step.mean)}" for bar in bars)
    return panel(traces, layout, f"Phases of a step, stacked. {spoken}.", 86 + 52 * len(bars) + 44)


def _stack(part: StepPart, bars: Sequence[ClockBar], names: Sequence[str]) -> dict[str, Any]:
    means = [_mean_ms(bar.times, part) for bar in bars]
    shares = [bar.times.share(part) for bar in bars]
    color = "axis" if part is StepPart.GAP else part.value
    return {
        "type": "bar",
        "orientation": "h",
        "name": part_label(part),
        "y": list(names),
        "x": means,
        "marker": {"color": f"@{color}", "line": {"width": 0}},
        "text": [words.percent(100 * share) if share >= 0.06 else "" for share in shares],
        "textposition": "inside",
        "insidetextanchor": "middle",
        # Plotly's own choice is white or a dark gray, neither of which has enough contrast.
        "insidetextfont": {"color": "@text" if color in WITH_TEXT else "@ink"},
        "textangle": 0,
        "constraintext": "both",
        "hovertemplate": [
            f"{part_label(part)}: mean {words.duration(None if mean is None else mean * _MS)}, "
            f"{words.percent(100 * share)}<extra></extra>"
            for mean, share in zip(means, shares, strict=True)
        ],
    }


def _mean_ms(times: ClockTimes, part: StepPart) -> float | None:
    spread = times.spread(part)
    return None if spread is None else spread.mean / _MS


def _whole(most: int) -> dict[str, int]:
    """Return the ticks of an axis of steps up to `most`, none of them between two whole numbers."""
    return {"dtick": 1} if most < _TICKS else {"nticks": _TICKS}


def distribution(steps_ns: Sequence[int], step: Spread, revision: str) -> dict[str, Any]:
    """Build the histogram of step times with percentiles; the longest steps share the last bar."""
    times = np.asarray(steps_ns, dtype=np.float64) / _MS
    low, high = float(times.min()), float(np.percentile(times, _CUT_PCT))
    high = max(high, step.p99 / _MS, low * 1.001 + 1e-9)
    numbers, edges = np.histogram(np.minimum(times, high), bins=_BINS, range=(low, high))
    middles = (edges[:-1] + edges[1:]) / 2
    beyond = int((times > high).sum())
    digits = _decimals(float(edges[1] - edges[0]))
    ranges = [f"{a:,.{digits}f} to {b:,.{digits}f} ms" for a, b in pairwise(edges)]
    if beyond:
        ranges[-1] = f"{edges[-2]:,.{digits}f} to {float(times.max()):,.{digits}f} ms"
    trace = {
        "type": "bar",
        "name": "steps",
        "x": middles,
        "y": numbers.astype(np.float32),
        "width": float(edges[1] - edges[0]) * 0.94,
        "marker": {"color": "@step", "line": {"width": 0}},
        "showlegend": False,
        "customdata": [
            f"{words.plural(int(number), 'step')} of {of}" for number, of in zip(numbers, ranges, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    marks = [("p50", step.p50), ("p95", step.p95), ("p99", step.p99)]
    layout = {
        **_plain(revision),
        "showlegend": False,
        "hovermode": "closest",
        "margin": {"l": 58, "r": 16, "t": 40, "b": 40},
        "xaxis": panel_axis("step time, ms") | {"fixedrange": True},
        "yaxis": panel_axis("steps") | {"rangemode": "tozero", "fixedrange": True, **_whole(numbers.max())},
        "shapes": [_line(value / _MS) for _, value in marks],
        "annotations": _labels(marks, low, high),
    }
    spoken = ", ".join(f"{name} {words.duration(value)}" for name, value in marks)
    footer = (
        f"{words.plural(beyond, 'step')} longer than {high:,.{digits}f} ms in the last bar." if beyond else ""
    )
    return panel([trace], layout, f"Distribution of step times: {spoken}.", 262) | {"footer": footer}


def _decimals(width: float) -> int:
    """Return the decimals with which the ends of a bar of this width differ in two digits."""
    return max(0, 1 - math.floor(math.log10(width)))


def _line(x: float) -> dict[str, Any]:
    stroke = {"color": "@text", "width": 1, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": stroke}


def _labels(marks: Sequence[tuple[str, float]], low_ms: float, high_ms: float) -> list[dict[str, Any]]:
    """Build a label above each line, in two rows, so that neighbors do not collide."""
    labels = []
    for at, (name, value) in enumerate(marks):
        x = value / _MS
        anchor = "left" if x < low_ms + 0.08 * (high_ms - low_ms) else "center"
        anchor = "right" if x > high_ms - 0.08 * (high_ms - low_ms) else anchor
        place: dict[str, Any] = {
            "xref": "x",
            "x": x,
            "xanchor": anchor,
            "yanchor": "bottom",
            "yshift": 14 * (at % 2),
        }
        labels.append(note(f"{name} {words.duration(value)}", 1.0, **place))
    return labels


def _plain(revision: str) -> dict[str, Any]:
    layout = frame(revision, top_px=40)
    layout["margin"] = {"l": 74, "r": 16, "t": 40, "b": 40}
    layout["legend"] = {**layout["legend"], "traceorder": "normal"}
    layout["dragmode"] = False
    del layout["hoversubplots"]
    return layout

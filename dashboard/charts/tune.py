"""The charts of a tune: samples/s against peak memory with the Pareto front, and the waterfall from the
baseline to the best settings."""

from collections.abc import Sequence
from typing import Any

from dashboard.charts.axes import frame
from dashboard.charts.panel import panel, panel_axis
from harness import words
from harness.tune.results import RankedRow, WaterfallBar

_MIB = 2.0**20
_LONGEST = 34
# The room of a label, as shares of the front's extent.
_ROOM_X, _ROOM_Y = 0.35, 0.06


def front(rows: Sequence[RankedRow], revision: str) -> dict[str, Any] | None:
    """Build samples/s against peak memory; None while fewer than two rows have both."""
    points = [row for row in rows if row.samples_per_s is not None and row.peak_bytes is not None]
    if len(points) < 2:
        return None
    best = sorted((row for row in points if row.is_on_front), key=_peak_mib)
    others = [row for row in points if not row.is_on_front]
    peaks = [_peak_mib(row) for row in points]
    middle = (min(peaks) + max(peaks)) / 2
    # A label beside a point at the edge of the chart is on the side of the middle.
    sides = ["middle left" if _peak_mib(row) > middle else "middle right" for row in best]
    traces = [
        _points("Pareto front", best, "@peak", mode="lines+markers+text") | {"textposition": sides},
        _points("other settings", others, "@util", mode="markers"),
    ]
    layout = {
        **_layout(revision),
        "xaxis": panel_axis("peak allocated, MiB") | {"fixedrange": True},
        "yaxis": panel_axis("samples/s") | {"fixedrange": True},
    }
    spoken = ", ".join(row.title for row in best)
    label = f"Samples/s against peak memory of {len(points)} sets of settings. Pareto front: {spoken}."
    return panel([trace for trace in traces if trace["x"]], layout, label, 380)


def waterfall(bars: Sequence[WaterfallBar], revision: str) -> dict[str, Any] | None:
    """Build the bars from the baseline to the best settings; None without a better setting."""
    if not bars:
        return None
    edges = [
        ("baseline", 0.0, bars[0].before, "@axis"),
        *((bar.title, bar.before, bar.after, _color(bar)) for bar in bars),
        ("best", 0.0, bars[-1].after, "@peak"),
    ]
    names = [_short(name) for name, *_ in edges]
    trace = {
        "type": "bar",
        "orientation": "h",
        "name": "samples/s",
        "showlegend": False,
        "y": names,
        "base": [start for _, start, _, _ in edges],
        "x": [end - start for _, start, end, _ in edges],
        "marker": {"color": [color for *_, color in edges], "line": {"width": 0}},
        "text": [_bar_text(start, end) for _, start, end, _ in edges],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": [
            f"{name}: {_bar_text(start, end)}<extra></extra>"
            for name, (_, start, end, _) in zip(names, edges, strict=True)
        ],
    }
    most = max(end for _, _, end, _ in edges)
    layout = {
        **_layout(revision),
        "showlegend": False,
        "margin": {"l": 110, "r": 16, "t": 16, "b": 44},
        "bargap": 0.3,
        "xaxis": panel_axis("samples/s") | {"fixedrange": True} | {"range": [0, 1.3 * most]},
        "yaxis": panel_axis("")
        | {"fixedrange": True}
        | {"autorange": "reversed", "type": "category", "automargin": True},
    }
    spoken = ", ".join(f"{bar.title} {_bar_text(bar.before, bar.after)}" for bar in bars)
    return panel([trace], layout, f"From the baseline to the best settings: {spoken}.", 90 + 42 * len(edges))


def _color(bar: WaterfallBar) -> str:
    return "@allocated" if bar.after >= bar.before else "@bad"


def _points(name: str, rows: Sequence[RankedRow], color: str, mode: str) -> dict[str, Any]:
    rates = [row.samples_per_s for row in rows if row.samples_per_s is not None]
    return {
        "type": "scatter",
        "mode": mode,
        "name": name,
        "x": [_peak_mib(row) for row in rows],
        "y": [rate.value for rate in rates],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [rate.high - rate.value for rate in rates],
            "arrayminus": [rate.value - rate.low for rate in rates],
            "color": color,
            "thickness": 1,
            "width": 3,
        },
        "text": _labels(rows),
        "textfont": {"size": 11, "color": "@text"},
        "marker": {"color": color, "size": 9},
        "line": {"color": color, "width": 1.5, "dash": "dot"},
        "hovertemplate": [
            f"{_short(row.title)}: {words.fine_rate(rate.value)}, "
            f"{words.size(None if row.peak_bytes is None else row.peak_bytes.value)}<extra></extra>"
            for row, rate in zip(rows, rates, strict=True)
        ],
    }


def _labels(rows: Sequence[RankedRow]) -> list[str]:
    """Return a label for each point, the best first; empty where another one is in its place."""
    points = [(_peak_mib(row), row.samples_per_s.value) for row in rows if row.samples_per_s is not None]
    if not points:
        return []
    width, height = (max(values) - min(values) or 1.0 for values in zip(*points, strict=True))
    labels = [""] * len(rows)
    placed: list[tuple[float, float]] = []
    for at in sorted(range(len(rows)), key=lambda at: not rows[at].is_winner):
        x, y = points[at]
        if all(abs(x - left) > _ROOM_X * width or abs(y - top) > _ROOM_Y * height for left, top in placed):
            placed.append((x, y))
            labels[at] = " best " if rows[at].is_winner else f" {_short(rows[at].title)} "
    return labels


def _peak_mib(row: RankedRow) -> float:
    assert row.peak_bytes is not None
    return row.peak_bytes.value / _MIB


def _bar_text(start: float, end: float) -> str:
    return words.fine_rate(end).removesuffix(" samples/s") if start == 0 else words.relative(end / start - 1)


def _short(title: str) -> str:
    """Return a title of limited length, in lines; Plotly reads some markup in texts."""
    text = words.clip(title, 3 * _LONGEST).replace("&", "&amp;").replace("<", "&lt;")
    lines = [""]
    for part in text.split(", "):
        if lines[-1] and len(lines[-1]) + len(part) > _LONGEST:
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return ",<br>".join(lines)


def _layout(revision: str) -> dict[str, Any]:
    layout = frame(revision, top_px=40)
    layout["margin"] = {"l": 74, "r": 24, "t": 40, "b": 44}
    layout["hovermode"] = "closest"
    layout["dragmode"] = False
    del layout["hoversubplots"]
    return layout

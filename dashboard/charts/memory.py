"""The Memory page's chart: memory in use against the limit, unused memory, and allocation retries by step."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dashboard.buckets import Array, BucketTable, joined
from dashboard.charts.axes import CONFIG, frame, line, memory_unit, note, step_axis, y_axis
from dashboard.charts.live import LIMIT_IN_SIGHT, NOTE_MARGIN, MemoryLimit, level
from dashboard.charts.markers import MARKED, QUIET, dash, marker_of
from harness import words
from harness.records.memory import MemorySampleRow
from harness.records.run import EventKind, EventRow

SHOWN = MARKED - QUIET | {EventKind.LEAK, EventKind.LEAK_CLEARED, EventKind.SNAPSHOT, EventKind.INJECTED}
_PANELS = {"yaxis": (0.5, 1.0), "yaxis2": (0.19, 0.43), "yaxis3": (0.0, 0.12)}
# The CPU's allocator never retries.
_PANELS_OF_CPU = {"yaxis": (0.42, 1.0), "yaxis2": (0.0, 0.34)}
# A process of more than this many times the memory of its tensors is noted as text, as on the Live page.
_DWARFED = 4.0


class Timeline(NamedTuple):
    """The data of the chart."""

    steps: BucketTable
    samples: Sequence[MemorySampleRow]
    retries: Sequence[tuple[int, int]]
    events: Sequence[EventRow]
    limit: MemoryLimit | None
    is_cpu: bool
    # The key under which the browser keeps zoom and legend.
    revision: str
    last_step: int | None


class _Curve(NamedTuple):
    name: str
    x: Array
    # In bytes.
    y: Array
    color: str
    width: float = 1.5
    hidden: bool = False

    @property
    def top(self) -> float:
        return float(np.nanmax(self.y)) if np.isfinite(self.y).any() else 0.0


def figure(timeline: Timeline) -> dict[str, Any]:
    """Build the figure's head, for live_plotly."""
    in_use, unused = _in_use(timeline), _unused(timeline)
    markers = [marker_of(event) for event in timeline.events if event.kind in SHOWN]
    x = timeline.steps.step
    ends = [*(float(value) for value in x[-1:]), *(float(marker.step) for marker in markers)]
    extent = [float(x[0]) if len(x) else 0.0, max(ends, default=1.0)]
    size = timeline.steps.size
    footer = (
        f"step {words.count(timeline.last_step)} · buckets of {'up to ' if size > 1 else ''}"
        f"{words.plural(size, 'step')} · {words.plural(len(timeline.samples), 'memory sample')}"
    )
    return {
        "data": [*_drawn(in_use, "y"), *_drawn(unused, "y2"), *_retries(timeline)],
        "layout": _layout(timeline, in_use, unused, [dash(marker) for marker in markers], extent),
        "config": CONFIG,
        "markers": [marker._asdict() for marker in markers],
        "extent": extent,
        "label": f"Chart of memory in use, unused memory and allocation retries by step. {footer}",
        "footer": footer,
        "last_step": timeline.last_step,
        "height": 430,
        "fill": False,
    }


def _in_use(timeline: Timeline) -> list[_Curve]:
    steps = timeline.steps
    reserved, peak = steps.band("reserved_bytes").high, steps.band("peak_allocated_bytes").high
    tensors = _Curve("peak", *joined(steps, peak), "@peak")
    allocated = _Curve("allocated", *joined(steps, steps.band("allocated_bytes").mean), "@allocated", 1.8)
    name = "process (RSS)" if timeline.is_cpu else "reserved"
    whole = _Curve(name, steps.step, reserved, "@reserved")
    inner = max(tensors.top, allocated.top)
    whole = whole._replace(hidden=whole.top > _DWARFED * inner > 0)
    return [curve for curve in (whole, tensors, allocated) if curve.top > 0]


def _unused(timeline: Timeline) -> list[_Curve]:
    """Return the curves of unused memory. On the CPU they are from memory samples, since steps record only
    the memory of the process."""
    steps, samples = timeline.steps, timeline.samples
    x = np.array([row.step for row in samples], dtype=np.float64)
    gap_x = x
    gap = _column([row.reserved_bytes for row in samples]) - _column([row.allocated_bytes for row in samples])
    if not timeline.is_cpu and not steps.band("reserved_bytes").is_empty:
        gap_x = steps.step
        gap = steps.band("reserved_bytes").high - steps.band("allocated_bytes").mean
    split = steps.band("inactive_split_bytes").high
    largest = _column([row.largest_free_bytes for row in samples])
    name = "free in the heap" if timeline.is_cpu else "reserved − allocated"
    curves = [
        _Curve(name, gap_x, np.maximum(gap, 0.0), "@h2d"),
        _Curve("split remainders", steps.step, split, "@data_wait"),
        _Curve("largest free block", x, largest, "@step"),
    ]
    return [curve for curve in curves if np.isfinite(curve.y).any()]


def _column(values: Sequence[int | None]) -> Array:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _unit(curves: Sequence[_Curve]) -> tuple[float, str]:
    return memory_unit(max((curve.top for curve in curves if not curve.hidden), default=0.0))


def _drawn(curves: Sequence[_Curve], axis: str) -> list[dict[str, Any]]:
    scale, unit = _unit(curves)
    return [
        line(
            curve.name,
            curve.x,
            curve.y / scale,
            axis,
            curve.color,
            f",.4~g}} {unit}",
            curve.width,
            **({"visible": "legendonly"} if curve.hidden else {}),
        )
        for curve in curves
    ]


def _retries(timeline: Timeline) -> list[dict[str, Any]]:
    if not timeline.retries or timeline.is_cpu:
        return []
    x = np.array([step for step, _ in timeline.retries], dtype=np.float64)
    y = np.array([count for _, count in timeline.retries], dtype=np.float64)
    return [line("retries", x, y, "y3", "@bad", ",d} so far", 1.5, line={"color": "@bad", "shape": "hv"})]


def _layout(
    timeline: Timeline,
    in_use: Sequence[_Curve],
    unused: Sequence[_Curve],
    dashes: list[dict[str, Any]],
    extent: Sequence[float],
) -> dict[str, Any]:
    shapes, notes = _limit(timeline.limit, in_use)
    axes = _y_axes(timeline, in_use, unused)
    if notes and in_use:  # Leave room for what is noted about values above the range.
        axes["yaxis"]["autorangeoptions"] = {"include": _top(in_use) * NOTE_MARGIN / _unit(in_use)[0]}
    return {
        **frame(timeline.revision),
        "xaxis": step_axis(extent),
        **axes,
        "shapes": [*dashes, *shapes],
        "annotations": [*notes, *_reasons(timeline, in_use, unused)],
    }


def _panels(timeline: Timeline) -> Mapping[str, tuple[float, float]]:
    return _PANELS_OF_CPU if timeline.is_cpu else _PANELS


def _y_axes(
    timeline: Timeline, in_use: Sequence[_Curve], unused: Sequence[_Curve]
) -> dict[str, dict[str, Any]]:
    panels = _panels(timeline)
    axes = {
        "yaxis": y_axis(f"memory, {_unit(in_use)[1]}", panels["yaxis"], ticks=5),
        "yaxis2": y_axis(f"unused, {_unit(unused)[1]}", panels["yaxis2"]),
    }
    if "yaxis3" in panels:
        axes["yaxis3"] = y_axis("retries", panels["yaxis3"], ticks=2)
        if not any(count for _, count in timeline.retries):
            axes["yaxis3"] |= {"range": [0, 1], "tickvals": [0]}
    return axes


def _top(curves: Sequence[_Curve]) -> float:
    """Return the highest value drawn, in bytes."""
    return max((curve.top for curve in curves if not curve.hidden), default=0.0)


def _limit(
    limit: MemoryLimit | None, in_use: Sequence[_Curve]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Build the limit as a dashed line, or as text if it is far above everything drawn."""
    scale = _unit(in_use)[0]
    top = _top(in_use)
    above = [
        f"{curve.name} {words.size(float(curve.y[np.isfinite(curve.y)][-1]))}"
        for curve in in_use
        if curve.hidden
    ]
    near = limit is not None and 0 < limit.value_bytes <= top * LIMIT_IN_SIGHT
    if limit is not None and not near:
        above.append(f"{limit.what} {words.size(limit.value_bytes)}")
    corner: dict[str, Any] = {"x": 0.002, "xanchor": "left", "yanchor": "top", "bgcolor": "@veil"}
    notes = [note(f"↑ above this range: {', '.join(above)}", 1.0, **corner)] if above else []
    if limit is None or not near:
        return [], notes
    text = f"{limit.what} {words.size(limit.value_bytes)}"
    stroke, label = level(limit.value_bytes / scale, text, "@bad")
    return [stroke], [*notes, label]


def _reasons(timeline: Timeline, in_use: Sequence[_Curve], unused: Sequence[_Curve]) -> list[dict[str, Any]]:
    """Build a note with the reason for each panel without data."""
    missing = {
        "yaxis": None if in_use else "this device does not report memory in use",
        "yaxis2": None if unused else _no_unused_memory(timeline),
        "yaxis3": None if timeline.retries else "no sample with retries",
    }
    middle: dict[str, Any] = {"x": 0.5, "xanchor": "center", "yanchor": "middle"}
    return [
        note(f"n/a: {missing[axis]}", sum(domain) / 2, **middle)
        for axis, domain in _panels(timeline).items()
        if missing[axis] is not None
    ]


def _no_unused_memory(timeline: Timeline) -> str:
    if timeline.is_cpu and not timeline.samples:
        return "no memory sample within these steps"
    return "the allocator does not report unused memory"

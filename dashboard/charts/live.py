"""The live chart: memory, step time, utilization and loss over one x axis, as a plain dict for live_plotly.

No graph objects and no subplots: a figure is built in well under a millisecond, and sharing one x axis among
four y axes draws one hover line through all panels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dashboard.buckets import Array, Band, BucketTable, joined
from dashboard.charts import scalars
from dashboard.charts.axes import (
    CONFIG,
    TIME_NUMBER,
    frame,
    line,
    memory_unit,
    note,
    step_axis,
    value_axis,
    y_axis,
)
from dashboard.charts.markers import MARKED, Marker, dashes, marker_of
from dashboard.charts.scalars import Scalar
from harness import words
from harness.analysis.timing.phases import part_label
from harness.predict.answer import off_by
from harness.records.run import EventRow

MS = 1e6
HEIGHT_PX = 440
# The height of the panels within it.
_PANELS_PX = 340
PANELS = {"yaxis": (0.565, 1.0), "yaxis2": (0.355, 0.525), "yaxis3": (0.2, 0.315), "yaxis4": (0.0, 0.16)}
# A limit higher than this many times the highest peak is noted as text; drawn, it would flatten the rest.
LIMIT_IN_SIGHT = 2.5
# The step panel ends at this many times the median; higher spikes are cut off,
SPIKE_MARGIN = 4.0
# but the time that one step in twenty exceeds is no spike and always fits, with this margin.
SUSTAINED_PCT = 95
SUSTAINED_MARGIN = 1.25
# Reserved memory of more than this many times the tensors' is noted as text.
DWARFED = 4.0
# The memory panel ends at this many times the highest memory drawn, so that a note fits above.
NOTE_MARGIN = 1.18


class MemoryLimit(NamedTuple):
    """The maximum memory available to the run, and its source: the device or a cap."""

    value_bytes: int
    what: str


class Predicted(NamedTuple):
    """The predicted and the measured peak under the settings in effect."""

    peak_bytes: int
    measured_bytes: int | None


class Live(NamedTuple):
    """The data of the live chart."""

    steps: BucketTable
    device: BucketTable
    events: Sequence[EventRow]
    # Ranges of steps left out of comparisons, first and last.
    transitions: Sequence[tuple[int, int]]
    limit: MemoryLimit | None
    predicted: Predicted | None
    # True if phases are measured on the device's own clock.
    device_clock: bool
    # Labels of reserved and allocated memory on this device.
    memory_names: tuple[str, str]
    util_name: str
    # The reason why a panel has no data, by "memory", "step", "util" and "loss".
    missing: dict[str, str]
    phases: bool
    # The key under which the browser keeps zoom and legend.
    revision: str
    footer: str
    last_step: int | None
    # Numbers that a script logged, each in a panel of its own.
    scalars: Sequence[Scalar] = ()
    # Blocks of measurements: first and last step, and whether under the changed settings.
    measured: Sequence[tuple[int, int, bool]] = ()


def figure(live: Live) -> dict[str, Any]:
    """Build the figure's head: data, layout, config, and further values for the browser."""
    x = live.steps.step
    traces = [*_memory(live, x), *_times(live, x), *_util(live), *_loss(live, x)]
    traces += scalars.traces(live.scalars)
    markers = [marker_of(event) for event in live.events if event.kind in MARKED]
    return {
        "data": traces,
        "layout": _layout(live, markers),
        "config": CONFIG,
        "markers": [marker._asdict() for marker in markers],
        "extent": _extent(x, markers),
        "label": f"Chart of memory, step time, utilization and loss by step. {live.footer}",
        "footer": live.footer,
        "last_step": live.last_step,
        "height": HEIGHT_PX + scalars.PANEL_PX * len(live.scalars),
        "fill": True,
    }


def _extent(x: Array, markers: Sequence[Marker]) -> list[float]:
    if not len(x):
        return [0.0, 1.0]
    return [float(x[0]), max([float(x[-1]), *(float(marker.step) for marker in markers)])]


def _memory(live: Live, x: Array) -> list[dict[str, Any]]:
    reserved_name, allocated_name = live.memory_names
    reserved, peak = live.steps.band("reserved_bytes"), live.steps.band("peak_allocated_bytes")
    allocated = live.steps.band("allocated_bytes")
    scale, unit = _memory_unit(live)
    number = f",.4~g}} {unit}"
    traces = []
    if not reserved.is_empty:
        visibility: dict[str, Any] = {"visible": "legendonly"} if _is_dwarfing(live) else {}
        traces.append(line(reserved_name, x, reserved.high / scale, "y", "@reserved", number, **visibility))
    if not peak.is_empty:
        traces.append(line("peak", *joined(live.steps, peak.high / scale), "y", "@peak", number))
    traces += _predicted(live, x)
    if not allocated.is_empty:
        x, y = joined(live.steps, allocated.mean / scale)
        traces += [_area(x, y), line(allocated_name, x, y, "y", "@allocated", number, 1.8, **_ALLOCATED)]
    return traces


_ALLOCATED = {"legendgroup": "allocated"}


def _area(x: Array, y: Array) -> dict[str, Any]:
    """Build the area under the line. A separate trace, at zero in gaps: a fill would run across them."""
    quiet: dict[str, Any] = {"hoverinfo": "skip", "showlegend": False, "hovertemplate": None}
    fill: dict[str, Any] = {"fill": "tozeroy", "fillcolor": "@allocated_fill"}
    return line("", x, np.nan_to_num(y), "y", "@allocated", "", 0.0, **_ALLOCATED, **quiet, **fill)


def _is_dwarfing(live: Live) -> bool:
    """Return whether reserved memory would flatten the tensors' lines: a small model on the CPU, where it is
    the whole process. It is then noted as text, and drawn after a click on the legend."""
    tensors = _top(live.steps.band("peak_allocated_bytes"), live.steps.band("allocated_bytes"))
    return _top(live.steps.band("reserved_bytes")) > DWARFED * tensors > 0


def _memory_top(live: Live) -> float:
    """Return the highest memory drawn, in bytes."""
    names = ["peak_allocated_bytes", "allocated_bytes"]
    if not _is_dwarfing(live):
        names.append("reserved_bytes")
    return _top(*(live.steps.band(name) for name in names))


def _memory_unit(live: Live) -> tuple[float, str]:
    return memory_unit(_memory_top(live))


def _times(live: Live, x: Array) -> list[dict[str, Any]]:
    step = live.steps.band("step_ns")
    most = line("step max", x, step.high / MS, "y2", "@step_max", TIME_NUMBER, 1.0)
    if live.phases:
        return [*_phases(live, x), most]
    mean = line("step mean", x, step.mean / MS, "y2", "@step", TIME_NUMBER, 1.8)
    if not _is_measured(live, "data_wait_ns"):
        return [most, mean]
    wait = live.steps.band("data_wait_ns")
    return [most, mean, line("data wait", x, wait.mean / MS, "y2", "@data_wait", TIME_NUMBER)]


def _is_measured(live: Live, column: str) -> bool:
    """Return whether a phase was measured. The log has 0 where nothing did, as the data wait without a loader
    and a script's copies on the CPU."""
    return _top(live.steps.band(column)) > 0


def _phases(live: Live, x: Array) -> list[dict[str, Any]]:
    steps = live.steps
    prefix = "device_" if live.device_clock else ""
    rest = steps.band("step_ns").mean.copy()
    traces = []
    for phase in ("data_wait", "h2d", "forward", "backward", "optimizer"):
        source = "data_wait_ns" if phase == "data_wait" else f"{prefix}{phase}_ns"
        if not _is_measured(live, source):
            continue
        y = steps.band(source).mean
        rest -= np.nan_to_num(y)
        traces.append(_stacked(part_label(phase), x, y / MS, f"@{phase}"))
    traces.append(_stacked("rest", x, np.maximum(rest, 0) / MS, "@residual"))
    return traces


def _stacked(name: str, x: Array, y: Array, color: str) -> dict[str, Any]:
    return line(name, x, y, "y2", color, TIME_NUMBER, 0.6, stackgroup="phases", stackgaps="infer zero")


def _util(live: Live) -> list[dict[str, Any]]:
    util = live.device.band("util_pct")
    if util.is_empty:
        return []
    return [line(live.util_name, live.device.step, util.mean, "y3", "@util", ".0f} %")]


def _loss(live: Live, x: Array) -> list[dict[str, Any]]:
    loss = live.steps.band("loss")
    if loss.is_empty:
        return []
    return [line("loss", x, loss.mean, "y4", "@loss", ",.4g}", 1.8)]


def _top(*bands: Band) -> float:
    highs = [float(np.nanmax(band.high)) for band in bands if not band.is_empty]
    return max(highs, default=0.0)


def _layout(live: Live, markers: Sequence[Marker]) -> dict[str, Any]:
    limit_shapes, limit_notes = _limit(live)
    return {
        **frame(live.revision),
        "xaxis": step_axis(_extent(live.steps.step, markers)),
        **_y_axes(live),
        **scalars.axes(live.scalars, _below(live)),
        "shapes": [*_shades(live), *dashes(markers), *limit_shapes],
        "annotations": [
            *limit_notes,
            *_reasons(live),
            *scalars.notes(live.scalars, _below(live)),
        ],
    }


def _below(live: Live) -> float:
    """Return the share of the height that panels of scalars take."""
    return scalars.share(live.scalars, _PANELS_PX)


def _panel(live: Live, name: str) -> tuple[float, float]:
    """Return the domain of a panel above those of scalars."""
    below = _below(live)
    low, high = PANELS[name]
    return below + low * (1 - below), below + high * (1 - below)


def _y_axes(live: Live) -> dict[str, dict[str, Any]]:
    axes = {
        "yaxis": y_axis(f"memory, {_memory_unit(live)[1]}", _panel(live, "yaxis"), ticks=5),
        "yaxis2": y_axis("step, ms", _panel(live, "yaxis2")),
        "yaxis3": y_axis("util, %", _panel(live, "yaxis3")) | {"range": [0, 104], "tickvals": [0, 50, 100]},
        "yaxis4": value_axis("loss", _panel(live, "yaxis4"), values=[live.steps.band("loss").mean]),
    }
    margin = _memory_top(live) * NOTE_MARGIN / _memory_unit(live)[0]
    if margin:  # Leave room for the note about values above the range.
        axes["yaxis"]["autorangeoptions"] = {"include": margin}
    ceiling = _ceiling(live.steps.band("step_ns"))
    if ceiling is not None:
        axes["yaxis2"]["autorangeoptions"] = {"clipmax": ceiling}
    return axes


def _ceiling(step: Band) -> float | None:
    """Return the top of the step panel in ms if a few spikes would flatten the rest, else None."""
    if step.is_empty:
        return None
    sustained = float(np.nanpercentile(step.mean, SUSTAINED_PCT)) * SUSTAINED_MARGIN
    ceiling = max(float(np.nanmedian(step.high)) * SPIKE_MARGIN, sustained)
    return ceiling / MS if float(np.nanmax(step.high)) > ceiling > 0 else None


def _shades(live: Live) -> list[dict[str, Any]]:
    marked = [_shade(first, last, "@shade") for first, last in live.transitions]
    return marked + [
        _shade(first, last, "@arm_b" if is_changed else "@arm_a") for first, last, is_changed in live.measured
    ]


def _shade(first: int, last: int, color: str) -> dict[str, Any]:
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": first - 0.5,
        "x1": last + 0.5,
        "y0": 0,
        "y1": 1,
        "layer": "below",
        "line": {"width": 0},
        "fillcolor": color,
    }


def _limit(live: Live) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Build the limit as a dashed line, or as text if it is far above everything drawn."""
    above = []
    if _is_dwarfing(live):
        reserved = live.steps.band("reserved_bytes").high
        latest = reserved[np.isfinite(reserved)][-1]
        above.append(f"{live.memory_names[0]} {words.size(float(latest))}")
    top = _memory_top(live)
    limit = live.limit
    is_near = limit is not None and top > 0 and limit.value_bytes <= top * LIMIT_IN_SIGHT
    if limit is not None and not is_near:
        above.append(f"{limit.what} {words.size(limit.value_bytes)}")
    corner: dict[str, Any] = {"x": 0.002, "xanchor": "left", "yanchor": "top", "bgcolor": "@veil"}
    notes = (
        [note(f"↑ above this range: {', '.join(above)}", _panel(live, "yaxis")[1], **corner)] if above else []
    )
    if limit is None or not is_near:
        return [], notes
    text = f"{limit.what} {words.size(limit.value_bytes)}"
    stroke, label = level(limit.value_bytes / _memory_unit(live)[0], text, "@bad")
    return [stroke], [*notes, label]


def _predicted(live: Live, x: Array) -> list[dict[str, Any]]:
    """Build the predicted peak as a dotted line that is named in the legend, for a label at the line would
    cover the measured peak; nothing if it is so far above everything drawn that it would flatten the rest."""
    predicted, top = live.predicted, _memory_top(live)
    if predicted is None or not 0 < predicted.peak_bytes <= top * LIMIT_IN_SIGHT:
        return []
    scale, unit = _memory_unit(live)
    error = off_by(predicted.peak_bytes, predicted.measured_bytes)
    number = f",.4~g}} {unit}" + ("" if error is None else f" ({error} of measured)")
    ends = np.array([x[0], x[-1]]) if len(x) else np.array([0.0, 1.0])
    name, y = f"predicted peak {words.size(predicted.peak_bytes)}", np.full(2, predicted.peak_bytes / scale)
    drawn = line(name, ends, y, "y", "@peak", number)
    return [drawn | {"line": {"color": "@peak", "width": 1.4, "dash": "dot"}}]


def level(y: float, text: str, color: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Build a dotted line through the memory panel at `y` with its label just above it, at the right: at the
    left are notes."""
    stroke = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "yref": "y",
        "y0": y,
        "y1": y,
        "line": {"color": color, "width": 1.4, "dash": "dot"},
    }
    label = note(text, y, yref="y", x=0.998, xanchor="right", yanchor="bottom", yshift=-1)
    return stroke, {**label, "font": {"size": 12, "color": color}}


def _reasons(live: Live) -> list[dict[str, Any]]:
    """Build a note with the reason for each panel without data."""
    panels = {"memory": "yaxis", "step": "yaxis2", "util": "yaxis3", "loss": "yaxis4"}
    return [
        note(
            f"n/a: {reason}", sum(_panel(live, panels[panel])) / 2, x=0.5, xanchor="center", yanchor="middle"
        )
        for panel, reason in live.missing.items()
    ]

"""The charts of a comparison: curves on a common axis, step times, phases and kinds of work by run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dashboard.buckets import EMPTY, Array, BucketTable, joined, of_steps
from dashboard.charts import phases
from dashboard.charts.axes import TIME_NUMBER, frame, line, memory_unit, value_axis, y_axis
from dashboard.charts.common_axis import TITLES, common_axis
from dashboard.charts.panel import panel, panel_axis
from dashboard.charts.theme import RUNS
from harness import words
from harness.analysis.compare.curves import CurveAxis, align, positions, step_time_bins
from harness.analysis.compare.facts import RunFacts
from harness.analysis.compare.parts import parts_side_by_side
from harness.records.profile import OperatorKind

_MS = 1e6
_LONGEST_NAME = 40
_LONGEST_IN_LEGEND = 200
# More kinds of work share one bar.
_MOST_KINDS = 7
_OTHERS = "others"


class Compared(NamedTuple):
    """One run in the comparison: its facts, its buckets of steps, and their positions on each axis."""

    # Plain text, not escaped.
    name: str
    facts: RunFacts
    steps: BucketTable
    positions: Mapping[CurveAxis, Array]


def compared(
    facts: RunFacts,
    columns: Sequence[str],
    bucket_size: int,
    rows: Sequence[Sequence[Any]],
    unobserved: Sequence[tuple[int, int]] = (),
) -> Compared:
    """Build a run of a comparison from the rows of its series; without `rows` it has no curve."""
    if not rows:
        return Compared(facts.name, facts, EMPTY, {axis: np.empty(0) for axis in CurveAxis})
    buckets = {
        name: [row[columns.index(name)] for row in rows]
        for name in ("bucket", "rows", "t_ns_first", "t_ns_last", "samples_sum")
    }
    steps = of_steps(columns, bucket_size, rows, unobserved)
    at = positions(CurveAxis.STEP, buckets)
    places = {axis: align(positions(axis, buckets), at, steps.step) for axis in CurveAxis}
    return Compared(facts.name, facts, steps, places)


def distinct(runs: Sequence[Compared]) -> list[Compared]:
    """Return the runs with distinct names: those of one name get their id too."""
    times = Counter(run.name for run in runs)
    return [
        run if times[run.name] == 1 else run._replace(name=f"{run.name} ({run.facts.run_id})") for run in runs
    ]


def figure(runs: Sequence[Compared], axis: CurveAxis = CurveAxis.STEP) -> dict[str, Any]:
    """Build the curves' head, for live_plotly. A run has one color in all panels and one legend entry."""
    drawn = [run for run in runs if _has_place(run, axis)]
    peaks = [run.steps.band("peak_allocated_bytes").high for run in drawn]
    unit = memory_unit(max((float(peak[np.isfinite(peak)].max(initial=0.0)) for peak in peaks), default=0.0))
    traces = [trace for run in drawn for trace in _traces(run, axis, runs.index(run), unit)]
    places = [run.positions[axis] for run in drawn]
    losses = [run.steps.band("loss").mean for run in drawn]
    extent = [
        min((float(np.nanmin(x)) for x in places), default=0.0),
        max((float(np.nanmax(x)) for x in places), default=1.0),
    ]
    layout = {
        **frame(
            "/".join([axis.value, *(run.facts.run_id for run in runs)]), top_px=34 + 14 * (len(runs) > 4)
        ),
        "showlegend": len(runs) > 1,
        "xaxis": common_axis(axis, extent),
        "yaxis": y_axis("step, ms", (0.7, 1.0)),
        "yaxis2": y_axis(f"peak, {unit[1]}", (0.36, 0.64)),
        "yaxis3": value_axis("loss", (0.0, 0.3), values=losses),
    }
    label = f"Comparison of {len(runs)} runs: step time, peak memory and loss by {TITLES[axis]}."
    footer = "Mean per bucket of steps; for the peak, the maximum."
    if unplaced := [run.name for run in runs if len(run.steps.step) and not _has_place(run, axis)]:
        footer += f" n/a for {', '.join(unplaced)}: the number of samples is unknown."
    return panel(traces, layout, label, 460) | {"extent": extent, "footer": footer}


def _has_place(run: Compared, axis: CurveAxis) -> bool:
    return bool(np.isfinite(run.positions[axis]).any())


def _traces(run: Compared, axis: CurveAxis, at: int, unit: tuple[float, str]) -> list[dict[str, Any]]:
    x, name, color = run.positions[axis], text(run.name, _LONGEST_IN_LEGEND), _color(at)
    step, loss = run.steps.band("step_ns").mean / _MS, run.steps.band("loss").mean
    # Memory is not read at every step.
    peak_x, peak = joined(run.steps._replace(step=x), run.steps.band("peak_allocated_bytes").high / unit[0])
    shared: dict[str, Any] = {"legendgroup": str(at)}
    return [
        line(name, x, step, "y", color, TIME_NUMBER, **shared),
        line(name, peak_x, peak, "y2", color, f",.4~g}} {unit[1]}", showlegend=False, **shared),
        line(name, x, loss, "y3", color, ",.4g}", showlegend=False, **shared),
    ]


def along(run: Compared, axis: CurveAxis, steps: Array) -> Array:
    """Return the positions of `steps` on the axis; NaN on another axis than steps for a run without steps."""
    if axis is CurveAxis.STEP:
        return steps
    if not len(run.steps.step):
        return np.full(len(steps), np.nan)
    return align(run.positions[axis], run.steps.step, steps)


def distribution(runs: Sequence[Compared]) -> dict[str, Any] | None:
    """Build the distributions of steady-state step times; None without any."""
    bins = step_time_bins([[step.step_ns for step in run.facts.steady] for run in runs])
    if bins is None:
        return None
    middles = (bins.edges_ns[:-1] + bins.edges_ns[1:]) / 2 / _MS
    traces = [
        line(text(run.name), middles, 100 * shares, "y", _color(at), ",.1f} %") | {"line": _outline(at)}
        for at, (run, shares) in enumerate(zip(runs, bins.shares, strict=True))
        if run.facts.steady
    ]
    layout = {
        **_plain(runs, "spread"),
        "hovermode": "x unified",
        "showlegend": len(runs) > 1,
        "xaxis": panel_axis("step time, ms")
        | {"hoverformat": ",.5~r", "unifiedhovertitle": {"text": "%{x} ms"}},
        "yaxis": panel_axis("share of steps, %") | {"rangemode": "tozero", "fixedrange": True, "nticks": 5},
    }
    label = "; ".join(
        f"{run.name} {words.duration(run.facts.timing.cpu.step.p50)}"
        for run in runs
        if run.facts.timing is not None and run.facts.timing.cpu is not None
    )
    footer = "Steady-state steps; those beyond the last value share the last bin."
    return panel(traces, layout, f"Distribution of step times, medians: {label}.", 290) | {"footer": footer}


def phase_bars(runs: Sequence[Compared]) -> dict[str, Any] | None:
    """Build the stacked bars of the phases of each run's step; None without any."""
    bars = [
        # A no-break space: the first other one would become a line break.
        phases.ClockBar(text(run.name).replace(" ", "\u00a0"), run.facts.timing.best)
        for run in runs
        if run.facts.timing is not None and run.facts.timing.best is not None
    ]
    return _roomy(phases.stacked(bars, _revision(runs, "phases"))) if bars else None


def memory_bars(runs: Sequence[Compared]) -> dict[str, Any] | None:
    """Build the stacked bars of the newest memory sample of each run; None without any."""
    measured = [run for run in runs if run.facts.memory is not None]
    parts = parts_side_by_side([run.facts.memory for run in measured])
    if not parts:
        return None
    names = [text(run.name).replace(" ", "\u00a0") for run in measured]
    wholes = [sum(size or 0 for size in sizes) for sizes in zip(*(part.sizes for part in parts), strict=True)]
    scale, unit = memory_unit(max(wholes))
    traces = [
        _bar(
            part.name,
            names,
            [None if size is None else size / scale for size in part.sizes],
            _color(at) if at < len(RUNS) else "@residual",
            f" {unit}",
        )
        for at, part in enumerate(parts)
    ]
    layout = _plain(runs, "memory", top_px=58) | _stacked(f"memory, {unit}")
    label = "Memory breakdown of the newest sample of each run, stacked."
    footer = "The newest sample of each run, at any moment of a step; not its peak."
    return _roomy(panel(traces, layout, label, 150 + 52 * len(measured)) | {"footer": footer})


def kind_bars(runs: Sequence[Compared]) -> dict[str, Any] | None:
    """Build the stacked bars of the kinds of work in each run's newest profile; None without any."""
    profiled = [run for run in runs if run.facts.profile is not None and run.facts.profile.parts]
    if not profiled:
        return None
    per_run = [_kinds_ms(run) for run in profiled]
    totals: Counter[str] = Counter()
    for kinds in per_run:
        totals.update(kinds)
    named = [kind for kind, _ in totals.most_common() if kind != OperatorKind.IDLE][:_MOST_KINDS]
    drawn_kinds = [*named, *([_OTHERS] if len(totals) - (OperatorKind.IDLE in totals) > len(named) else [])]
    drawn_kinds += [OperatorKind.IDLE] if OperatorKind.IDLE in totals else []
    names = [text(run.name).replace(" ", "\u00a0") for run in profiled]
    traces = [
        _kind_bar(kind, names, [_kind_ms(kinds, kind, named) for kinds in per_run], at)
        for at, kind in enumerate(drawn_kinds)
    ]
    layout = _plain(runs, "kinds") | _stacked("profiled time per step, ms")
    label = "Kinds of work per step in the newest profile of each run, stacked."
    clocks = {run.facts.profile.is_on_device for run in profiled if run.facts.profile is not None}
    footer = "Kernels on the device." if clocks == {True} else "Operators on the CPU."
    if len(clocks) == 2:
        footer = "Some profiles have kernels on the device, others operators on the CPU."
    return _roomy(panel(traces, layout, label, 130 + 52 * len(profiled)) | {"footer": footer})


def _stacked(title: str) -> dict[str, Any]:
    """Return the part of a layout for stacked bars, one per run, along an axis with a title."""
    return {
        "barmode": "stack",
        "bargap": 0.34,
        "hovermode": "closest",
        "xaxis": panel_axis(title) | {"fixedrange": True, "rangemode": "tozero"},
        "yaxis": panel_axis("") | {"autorange": "reversed", "fixedrange": True, "type": "category"},
    }


def _kinds_ms(run: Compared) -> dict[str, float]:
    profile = run.facts.profile
    assert profile is not None
    return {str(part.name): part.time_ns / profile.steps / _MS for part in profile.parts}


def _kind_ms(kinds: Mapping[str, float], kind: str, named: Sequence[str]) -> float | None:
    if kind != _OTHERS:
        return kinds.get(kind)
    return sum(time for name, time in kinds.items() if name not in named and name != OperatorKind.IDLE)


def _kind_bar(kind: str, names: Sequence[str], times_ms: Sequence[float | None], at: int) -> dict[str, Any]:
    color = "@axis" if kind == OperatorKind.IDLE else "@residual" if kind == _OTHERS else _color(at)
    return _bar(kind, names, times_ms, color, " ms")


def _bar(
    part: str, names: Sequence[str], values: Sequence[float | None], color: str, unit: str
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": text(part),
        "y": list(names),
        "x": list(values),
        "marker": {"color": color, "line": {"width": 0}},
        "hovertemplate": text(part) + ": %{x:,.3~f}" + unit + "<extra></extra>",
    }


def text(name: str, most: int = _LONGEST_NAME) -> str:
    """Return a name as text of at most `most` characters: Plotly reads a little HTML."""
    return words.clip(words.printable(name), most).replace("&", "&amp;").replace("<", "&lt;")


def _color(at: int) -> str:
    return f"@{RUNS[at % len(RUNS)]}"


def _outline(at: int) -> dict[str, Any]:
    return {"color": _color(at), "width": 1.6, "shape": "hvh"}


def _revision(runs: Sequence[Compared], what: str) -> str:
    return "/".join([what, *(run.facts.run_id for run in runs)])


def _plain(runs: Sequence[Compared], what: str, top_px: int = 40) -> dict[str, Any]:
    layout = frame(_revision(runs, what), top_px=top_px) | {"dragmode": False}
    layout["legend"] = {**layout["legend"], "traceorder": "normal"}
    del layout["hoversubplots"]
    return layout


def _roomy(head: dict[str, Any]) -> dict[str, Any]:
    """Give the names of runs the room they need beside the bars."""
    head["layout"]["yaxis"]["automargin"] = True
    return head

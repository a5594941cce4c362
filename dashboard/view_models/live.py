"""The live page's drawing: the chart's head, the cards and the alerts, from the data of a run."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from dashboard import buckets
from dashboard.charts import cards, live
from dashboard.charts.cards import Card
from dashboard.charts.scalars import Scalar
from dashboard.data.figures import SHADED, Figures
from dashboard.data.predictions import cached_prediction
from dashboard.data.runs import RunView, memory_limit, process_limit_bytes
from dashboard.data.scalars import ScalarSeries
from harness import words
from harness.analysis.memory.alerts import Alert, alerts
from harness.analysis.memory.pressure import pressure
from harness.predict.error_band import settled_peak
from harness.records.floats import decode_float
from harness.records.run import DeviceKind
from harness.store.script_log import ScalarBucket


def revision(view: RunView, window: str, phases: bool) -> str:
    """Return the key under which the browser keeps zoom and legend."""
    return f"{view.folder.run_id}/{window}{'/phases' if phases else ''}"


class LiveDrawing(NamedTuple):
    """Everything that a tick of the live page draws."""

    # The live chart's head, for live_plotly.
    chart: dict[str, Any]
    cards: list[Card]
    alerts: list[Alert]


def draw(view: RunView, figures: Figures, window: str, phases: bool, now: datetime) -> LiveDrawing:
    """Build the chart, the cards above it and the alerts."""
    steps, device = buckets.EMPTY, buckets.EMPTY
    if (read := figures.steps) is not None:
        steps = buckets.of_steps(read.columns, read.bucket_size, read.rows, read.unobserved)
    if (sampled := figures.device) is not None:
        device = buckets.of_samples(sampled.columns, sampled.bucket_size, sampled.rows)
    missing = _missing(view, figures, steps, device)
    is_cpu = _kind(view) is DeviceKind.CPU
    limit = memory_limit(view)
    drawn = live.Live(
        steps=steps,
        device=device,
        events=figures.events,
        transitions=[*figures.transitions, *_unobserved(figures)],
        measured=figures.measured,
        limit=None if limit is None else live.MemoryLimit(*limit),
        predicted=_predicted(view, figures),
        device_clock=not is_cpu and not steps.band("device_forward_ns").is_empty,
        memory_names=("process (RSS)" if is_cpu else "reserved", "allocated"),
        util_name="CPU util" if is_cpu else "GPU util",
        missing=missing,
        phases=phases,
        revision=revision(view, window, phases),
        footer=_footer(figures, steps, now),
        last_step=figures.last,
        scalars=[scalar_of(series) for series in figures.scalars],
    )
    source = cards.LiveCardData(
        recent=figures.recent,
        device=device,
        sample=figures.sample,
        kind=_kind(view),
        limit_bytes=None if limit is None else limit[0],
        missing=missing,
    )
    return LiveDrawing(live.figure(drawn), cards.cards(source), _alerts(view, figures))


def scalar_of(series: ScalarSeries) -> Scalar:
    """Return a scalar's buckets as columns."""
    table = np.array(series.buckets, dtype=np.float64).reshape(-1, len(ScalarBucket._fields))
    first, last, count, low, high, total, not_finite = table.T
    mean = np.full(len(table), np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return Scalar(series.name, (first + last) / 2, low, mean, high, int(not_finite.sum()))


def _predicted(view: RunView, figures: Figures) -> live.Predicted | None:
    """Return the cached prediction for the settings in effect with the peak of their steady-state steps."""
    settings = None if view.settings is None else view.settings.complete
    if settings is None or view.device is None or not view.history:
        return None
    prediction = cached_prediction(settings, view.device)
    if prediction is None:
        return None
    measured = settled_peak(figures.recent, view.history[-1].version)
    return live.Predicted(prediction.peak_allocated_bytes, measured)


def _alerts(view: RunView, figures: Figures) -> list[Alert]:
    """Return the alerts on the run's memory. Memory pressure does not matter once the run has ended."""
    tight, is_over = None, view.status.state.is_over
    if not is_over:
        cap_bytes = None if view.settings is None else view.settings.values.memory_cap_bytes
        is_cpu = _kind(view) is DeviceKind.CPU
        tight = pressure(figures.recent, figures.memory, cap_bytes, is_cpu, process_limit_bytes(view))
    return alerts(tight, figures.leaks, figures.ooms, figures.recent, is_over=is_over)


def _kind(view: RunView) -> DeviceKind | None:
    return None if view.device is None else view.device.kind


def _missing(
    view: RunView, figures: Figures, steps: buckets.BucketTable, device: buckets.BucketTable
) -> dict[str, str]:
    """Return why panels have no data. Missing data is explained, never drawn as zero."""
    if not figures.recent:
        return {"step": "no step has ended"}
    missing = {}
    is_cpu = _kind(view) is DeviceKind.CPU
    if steps.band("allocated_bytes").is_empty and steps.band("reserved_bytes").is_empty:
        missing["memory"] = "this device does not report memory in use"
    if device.band("util_pct").is_empty:
        if figures.sample is None:
            missing["util"] = "no sample of the device"
        elif figures.sample.util_pct is not None:
            missing["util"] = "no sample within these steps; one is taken per second"
        elif is_cpu and figures.sample.seq == 0:
            missing["util"] = "CPU utilization needs two samples; one is taken per second"
        elif is_cpu:
            missing["util"] = "this system does not report CPU utilization"
        else:
            missing["util"] = "NVML is not available, so GPU utilization is unknown"
    if steps.band("loss").is_empty:
        missing["loss"] = _no_loss(view, figures)
    return missing


def _no_loss(view: RunView, figures: Figures) -> str:
    if any(decode_float(row.loss, row.loss_state) is not None for row in figures.recent):
        return "no finite loss"
    return "no loss was recorded" + ("; run.log(loss=…) records it" if view.script is not None else "")


def _unobserved(figures: Figures) -> Sequence[tuple[int, int]]:
    """Return the blocks of unobserved steps, if buckets are short enough to show them."""
    if figures.steps is None or figures.steps.bucket_size > SHADED:
        return ()
    return figures.steps.unobserved


def _footer(figures: Figures, steps: buckets.BucketTable, now: datetime) -> str:
    if figures.last is None:
        return "no step"
    size = f"{'up to ' if steps.size > 1 else ''}{words.plural(steps.size, 'step')}"
    alone = sum(last - first + 1 for first, last in _unobserved(figures))
    unseen = f"{words.plural(alone, 'step')} unobserved, to measure overhead · " if alone else ""
    return (
        f"step {words.count(figures.last)} · {words.plural(steps.buckets, 'bucket')} of {size} · {unseen}"
        f"refreshed {now:%H:%M:%S}"
    )

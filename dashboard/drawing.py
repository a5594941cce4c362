"""From what was read of a run to what the live page draws: the chart's head and the row of figures."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from dashboard import frames
from dashboard.charts import cards, live
from dashboard.charts.cards import Card
from dashboard.data.figures import SHADED, Figures
from dashboard.data.predictions import known
from dashboard.data.runs import Look, memory_limit
from harness import words
from harness.analysis.memory.alerts import Alert, alerts
from harness.analysis.memory.pressure import pressure
from harness.predict.error_band import settled_peak
from harness.records import DeviceKind


def revision(seen: Look, window: str, phases: bool) -> str:
    """Zoom and legend are kept while this stays the same."""
    return f"{seen.folder.run_id}/{window}{'/phases' if phases else ''}"


class Drawing(NamedTuple):
    """What a tick draws."""

    chart: dict[str, Any]
    """The live chart's head, for live_plotly."""
    cards: list[Card]
    alerts: list[Alert]


def draw(seen: Look, figures: Figures, window: str, phases: bool, now: datetime) -> Drawing:
    """The chart and the row of figures above it."""
    steps, device = frames.EMPTY, frames.EMPTY
    if (read := figures.steps) is not None:
        steps = frames.of_steps(read.columns, read.bucket_size, read.rows, read.unobserved)
    if (sampled := figures.device) is not None:
        device = frames.of_samples(sampled.columns, sampled.bucket_size, sampled.rows)
    missing = _missing(seen, figures, steps, device)
    is_cpu = _kind(seen) is DeviceKind.CPU
    limit = memory_limit(seen)
    drawn = live.Live(
        steps=steps,
        device=device,
        events=figures.events,
        transitions=[*figures.transitions, *_unobserved(figures)],
        limit=None if limit is None else live.Limit(*limit),
        predicted=_predicted(seen, figures),
        device_clock=not is_cpu and not steps.band("device_forward_ns").is_empty,
        memory_names=("process (RSS)" if is_cpu else "reserved", "allocated"),
        util_name="CPU util" if is_cpu else "GPU util",
        missing=missing,
        phases=phases,
        revision=revision(seen, window, phases),
        footer=_footer(figures, steps, now),
        last_step=figures.last,
    )
    source = cards.Source(
        recent=figures.recent,
        device=device,
        sample=figures.sample,
        kind=_kind(seen),
        limit_bytes=None if limit is None else limit[0],
        missing=missing,
    )
    return Drawing(live.figure(drawn), cards.cards(source), _alerts(seen, figures))


def _predicted(seen: Look, figures: Figures) -> live.Predicted | None:
    """The prediction for the settings in effect, where one was made, beside the settled steps under them."""
    if seen.settings is None or seen.device is None or not seen.history:
        return None
    prediction = known(seen.settings, seen.device)
    if prediction is None:
        return None
    measured = settled_peak(figures.recent, seen.history[-1].version)
    return live.Predicted(prediction.peak_allocated_bytes, measured)


def _alerts(seen: Look, figures: Figures) -> list[Alert]:
    """What to know about the run's memory. How tight it is says nothing once the run is over."""
    tight = None
    if not seen.status.state.is_over:
        cap_bytes = None if seen.settings is None else seen.settings.memory_cap_bytes
        tight = pressure(figures.recent, figures.memory, cap_bytes, _kind(seen) is DeviceKind.CPU)
    return alerts(tight, figures.leaks, figures.ooms, figures.recent)


def _kind(seen: Look) -> DeviceKind | None:
    return None if seen.device is None else seen.device.kind


def _missing(seen: Look, figures: Figures, steps: frames.Frame, device: frames.Frame) -> dict[str, str]:
    """Why a panel has nothing to show. What is not measured is said, never drawn as zero."""
    if not figures.recent:
        return {"step": "no step has ended yet"}
    missing = {}
    is_cpu = _kind(seen) is DeviceKind.CPU
    if steps.band("allocated_bytes").is_empty and steps.band("reserved_bytes").is_empty:
        missing["memory"] = "this device does not tell how much memory is in use"
    if device.band("util_pct").is_empty:
        if figures.sample is None:
            missing["util"] = "no sample of the device yet"
        elif is_cpu:
            missing["util"] = "this system does not tell how busy the CPU is"
        else:
            missing["util"] = "NVML is not available, so the GPU does not tell how busy it is"
    if steps.band("loss").is_empty:
        missing["loss"] = "no finite loss so far"
    return missing


def _unobserved(figures: Figures) -> Sequence[tuple[int, int]]:
    """The blocks of steps taken unobserved, where buckets are so short that they are seen."""
    if figures.steps is None or figures.steps.bucket_size > SHADED:
        return ()
    return figures.steps.unobserved


def _footer(figures: Figures, steps: frames.Frame, now: datetime) -> str:
    if figures.last is None:
        return "no step yet"
    size = f"{'up to ' if steps.size > 1 else ''}{words.plural(steps.size, 'step')}"
    alone = sum(last - first + 1 for first, last in _unobserved(figures))
    unseen = (
        f"{words.plural(alone, 'step')} taken unobserved, to tell what observing costs · " if alone else ""
    )
    return (
        f"step {words.count(figures.last)} · {words.plural(steps.buckets, 'bucket')} of {size} · {unseen}"
        f"refreshed {now:%H:%M:%S}"
    )

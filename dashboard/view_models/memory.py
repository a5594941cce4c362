"""The Memory page's drawing: verdict, cards, breakdown, chart and leaks, from the data of a run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard import buckets as frames
from dashboard.charts import memory, memory_cards
from dashboard.charts.cards import Card
from dashboard.charts.live import MemoryLimit
from dashboard.data.memory import Findings, MemorySeries
from dashboard.data.runs import RunView, memory_limit, process_limit_bytes
from harness.analysis.memory.alerts import current_leaks
from harness.analysis.memory.pressure import pressure
from harness.analysis.memory.readings import newest_level
from harness.analysis.memory.verdict import MemoryEvidence, MemoryVerdict, verdict
from harness.analysis.memory.waterfall import Waterfall, waterfall
from harness.records.memory import LeakRow
from harness.records.run import DeviceKind


class MemoryDrawing(NamedTuple):
    """Everything that a tick of the Memory page draws."""

    verdict: MemoryVerdict
    cards: list[Card]
    waterfall: Waterfall | None
    # The timeline's head, for live_plotly.
    chart: dict[str, Any]
    # False before the first step.
    has_steps: bool
    # The current verdict on each series.
    leaks: Sequence[LeakRow]


def revision(view: RunView) -> str:
    """Return the key under which the browser keeps zoom and legend."""
    return f"{view.folder.run_id}/memory"


def draw(view: RunView, series: MemorySeries, findings: Findings) -> MemoryDrawing:
    """Build everything on the page that is updated while a run is active."""
    is_cpu = view.device is not None and view.device.kind is DeviceKind.CPU
    steps = frames.EMPTY
    if series.steps is not None:
        buckets = series.steps
        steps = frames.of_steps(buckets.columns, buckets.bucket_size, buckets.rows, buckets.unobserved)
    limit = memory_limit(view)
    timeline = memory.Timeline(
        steps=steps,
        samples=series.samples,
        retries=series.retries,
        events=series.events,
        limit=None if limit is None else MemoryLimit(*limit),
        is_cpu=is_cpu,
        revision=revision(view),
        last_step=series.last,
    )
    cap_bytes = None if view.settings is None else view.settings.values.memory_cap_bytes
    evidence = MemoryEvidence(
        pressure=pressure(series.recent, series.latest, cap_bytes, is_cpu, process_limit_bytes(view)),
        leaks=series.leaks,
        ooms=series.ooms,
        recent=series.recent,
        refusal=series.refusal,
    )
    source = memory_cards.MemoryCardData(series.recent, series.samples, series.latest, is_cpu)
    return MemoryDrawing(
        verdict=verdict(evidence),
        cards=memory_cards.cards(source),
        waterfall=waterfall(series.latest, findings.census, is_cpu, newest_level(series.recent)),
        chart=memory.figure(timeline),
        has_steps=series.last is not None,
        leaks=current_leaks(series.leaks),
    )

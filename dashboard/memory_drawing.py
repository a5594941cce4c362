"""The Memory page's drawing: verdict, cards, breakdown, chart and leaks, from the data of a run."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from dashboard import frames
from dashboard.charts import memory, memory_cards
from dashboard.charts.cards import Card
from dashboard.charts.live import Limit
from dashboard.data.memory import Course, Findings
from dashboard.data.runs import Look, memory_limit
from harness.analysis.memory.alerts import standing
from harness.analysis.memory.pressure import pressure
from harness.analysis.memory.verdict import Known, MemoryVerdict, verdict
from harness.analysis.memory.waterfall import Waterfall, waterfall
from harness.memory_records import LeakRow
from harness.records import DeviceKind


class Drawing(NamedTuple):
    """Everything that a tick of the Memory page draws."""

    verdict: MemoryVerdict
    cards: list[Card]
    waterfall: Waterfall | None
    chart: dict[str, Any]
    """The timeline's head, for live_plotly."""
    has_steps: bool
    """False before the first step."""
    leaks: Sequence[LeakRow]
    """The current verdict on each series."""


def revision(seen: Look) -> str:
    """Return the key under which the browser keeps zoom and legend."""
    return f"{seen.folder.run_id}/memory"


def draw(seen: Look, course: Course, findings: Findings) -> Drawing:
    """Build everything on the page that is updated while a run is active."""
    is_cpu = seen.device is not None and seen.device.kind is DeviceKind.CPU
    steps = frames.EMPTY
    if course.steps is not None:
        read = course.steps
        steps = frames.of_steps(read.columns, read.bucket_size, read.rows, read.unobserved)
    limit = memory_limit(seen)
    timeline = memory.Timeline(
        steps=steps,
        samples=course.samples,
        retries=course.retries,
        events=course.events,
        limit=None if limit is None else Limit(*limit),
        is_cpu=is_cpu,
        revision=revision(seen),
        last_step=course.last,
    )
    cap_bytes = None if seen.settings is None else seen.settings.memory_cap_bytes
    known = Known(
        pressure=pressure(course.recent, course.latest, cap_bytes, is_cpu),
        leaks=course.leaks,
        ooms=course.ooms,
        recent=course.recent,
        is_cpu=is_cpu,
    )
    source = memory_cards.Source(course.recent, course.samples, course.latest, is_cpu)
    return Drawing(
        verdict=verdict(known),
        cards=memory_cards.cards(source),
        waterfall=waterfall(course.latest, findings.census, is_cpu),
        chart=memory.figure(timeline),
        has_steps=course.last is not None,
        leaks=standing(course.leaks),
    )

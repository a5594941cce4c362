"""Alerts on the memory of a live run, the most urgent first."""

import statistics
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.analysis.memory.pressure import Level, Pressure
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import EventKind, EventRow, Severity, StepRow


class Urgency(StrEnum):
    """Urgency of an alert."""

    BAD = "bad"
    WARNING = "warning"


class Alert(NamedTuple):
    """One alert: a short label for a badge, and a sentence."""

    urgency: Urgency
    label: str
    sentence: str


def alerts(
    pressure: Pressure | None,
    leaks: Iterable[LeakRow],
    events: Iterable[EventRow],
    recent: Sequence[StepRow],
    *,
    is_over: bool = False,
) -> list[Alert]:
    """All alerts. `leaks` and `events` are in the order of writing; of a run that is over nothing is
    projected."""
    unsorted = [*_out_of_memory(events), *_leaks(leaks, recent, is_over), *_pressure(pressure)]
    return sorted(unsorted, key=lambda alert: list(Urgency).index(alert.urgency))


def current_leaks(leaks: Iterable[LeakRow]) -> list[LeakRow]:
    """The newest verdict on each series that has one."""
    newest = {LeakSeries(row.series): row for row in leaks}
    return [newest[series] for series in LeakSeries if series in newest]


def _out_of_memory(events: Iterable[EventRow]) -> list[Alert]:
    failed = [event for event in events if event.kind == EventKind.OOM]
    if not failed:
        return []
    last = failed[-1]
    is_final = last.severity == Severity.ERROR
    times = f" ×{len(failed)}" if len(failed) > 1 else ""
    when = f"at step {words.count(last.step)}" if last.step else "before the first step"
    label = f"out of memory{times} {when}"
    return [Alert(Urgency.BAD if is_final else Urgency.WARNING, label, last.message)]


def _leaks(leaks: Iterable[LeakRow], recent: Sequence[StepRow], is_over: bool) -> list[Alert]:
    leak_alerts: list[Alert] = []
    reported: list[LeakRow] = []
    for row in current_leaks(leaks):
        is_leak = row.verdict == LeakVerdict.LEAK
        is_near_limit = row.verdict == LeakVerdict.WATCH and row.steps_to_oom is not None
        if (is_leak or is_near_limit) and not any(row.has_one_cause_with(one) for one in reported):
            reported.append(row)
            kind = "fragmenting" if row.series == LeakSeries.FRAGMENTATION else "leak"
            label = f"{kind if is_leak else 'growing'} {words.size(row.bytes_per_step)}/step"
            if row.steps_to_oom is not None and not is_over:
                # A verdict that stays is written every ten seconds.
                steps_since = max(0, recent[-1].step - row.step) if recent else 0
                label += f" · out of memory in {_remaining(max(0, row.steps_to_oom - steps_since), recent)}"
            leak_alerts.append(Alert(Urgency.BAD if is_leak else Urgency.WARNING, label, row.message))
    return leak_alerts


def _remaining(steps: int, recent: Sequence[StepRow]) -> str:
    """Text of a number of steps, with their duration at the median of the recent ones."""
    text = words.estimate(steps, "step")
    if not recent:
        return text
    return f"{text} ({words.span(steps * statistics.median(row.step_ns for row in recent) / 1e9)})"


def _pressure(pressure: Pressure | None) -> list[Alert]:
    if pressure is None or pressure.level is Level.CALM:
        return []
    urgency = Urgency.BAD if pressure.level is Level.VERY_TIGHT else Urgency.WARNING
    return [Alert(urgency, f"memory {words.percent(100 * pressure.share)}", pressure.sentence)]

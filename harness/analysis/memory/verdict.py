"""Verdict on the memory of a run, in one sentence: the most severe that the evidence supports."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from harness import words
from harness.analysis.memory.alerts import current_leaks
from harness.analysis.memory.pressure import Level, Pressure
from harness.files.plain_json import json_object
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import EventKind, EventRow, Severity, StepRow


class MemoryState(StrEnum):
    """State of a run's memory, the most severe first."""

    OUT = "ran out of memory"
    REFUSED = "cap refused"
    LEAK = "leak"
    FRAGMENTING = "fragmenting"
    TIGHT = "under pressure"
    RECOVERED = "recovered"
    WATCH = "rising"
    FITS = "fits well"
    UNKNOWN = "unknown"


class MemoryVerdict(NamedTuple):
    """The state, with its reason in one sentence."""

    state: MemoryState
    sentence: str


class MemoryEvidence(NamedTuple):
    """Evidence for the verdict."""

    pressure: Pressure | None
    # All verdicts on leaks, in order.
    leaks: Sequence[LeakRow]
    # All out-of-memory events, in order.
    ooms: Sequence[EventRow]
    # The last steps, in order.
    recent: Sequence[StepRow]
    # The error that ended the run because its memory cap was too small; None for any other end.
    refusal: EventRow | None = None


def verdict(evidence: MemoryEvidence) -> MemoryVerdict:
    """The most severe verdict that the evidence supports."""
    for judge in (_out, _refused, _leak, _fragmenting, _tight, _recovered, _watch, _fits):
        result = judge(evidence)
        if result is not None:
            return result
    return MemoryVerdict(MemoryState.UNKNOWN, _unknown(evidence))


def cap_refusal(events: Iterable[EventRow]) -> EventRow | None:
    """The error among `events` that ended a run because it could not train under its memory cap."""
    return next((event for event in events if event.kind == EventKind.ERROR and _is_on_cap(event)), None)


def _is_on_cap(event: EventRow) -> bool:
    try:
        return json_object(event.detail).get("setting") == "memory_cap_gib"
    except ValueError:
        return False


def _out(evidence: MemoryEvidence) -> MemoryVerdict | None:
    last = evidence.ooms[-1] if evidence.ooms else None
    if last is None or last.severity != Severity.ERROR:
        return None
    return MemoryVerdict(MemoryState.OUT, last.message)


def _refused(evidence: MemoryEvidence) -> MemoryVerdict | None:
    refusal = evidence.refusal
    return None if refusal is None else MemoryVerdict(MemoryState.REFUSED, refusal.message)


def _leak(evidence: MemoryEvidence) -> MemoryVerdict | None:
    for row in current_leaks(evidence.leaks):
        if row.verdict == LeakVerdict.LEAK:
            kind = MemoryState.FRAGMENTING if row.series == LeakSeries.FRAGMENTATION else MemoryState.LEAK
            return MemoryVerdict(kind, row.message)
    return None


def _fragmenting(evidence: MemoryEvidence) -> MemoryVerdict | None:
    """Fragmentation by the allocator's retries: it had to release its cache to serve requests."""
    rows = [row for row in evidence.recent if row.alloc_retries is not None]
    if len(rows) < 2:
        return None
    first, last = rows[0], rows[-1]
    retries = (last.alloc_retries or 0) - (first.alloc_retries or 0)
    unused = (last.reserved_bytes or 0) - (last.peak_allocated_bytes or 0)
    if retries <= 0 or unused <= 0:
        return None
    return MemoryVerdict(
        MemoryState.FRAGMENTING,
        f"In the last {words.plural(last.step - first.step, 'step')} allocations failed and were "
        f"retried {words.plural(retries, 'time')} after releasing the cache, while {words.size(unused)} of "
        f"the {words.size(last.reserved_bytes)} reserved were unused in fragments, even at the peak.",
    )


def _tight(evidence: MemoryEvidence) -> MemoryVerdict | None:
    pressure = evidence.pressure
    if pressure is None or pressure.level is Level.CALM:
        return None
    return MemoryVerdict(MemoryState.TIGHT, pressure.sentence)


def _recovered(evidence: MemoryEvidence) -> MemoryVerdict | None:
    if not evidence.ooms:
        return None
    times = "once" if len(evidence.ooms) == 1 else f"{len(evidence.ooms)} times"
    text = f"Memory ran out {times}, last in step {words.count(evidence.ooms[-1].step)}, and the run went on."
    return MemoryVerdict(MemoryState.RECOVERED, text)


def _watch(evidence: MemoryEvidence) -> MemoryVerdict | None:
    for row in current_leaks(evidence.leaks):
        if row.verdict == LeakVerdict.WATCH:
            return MemoryVerdict(MemoryState.WATCH, row.message)
    return None


def _fits(evidence: MemoryEvidence) -> MemoryVerdict | None:
    pressure = evidence.pressure
    if pressure is None or not evidence.recent:
        return None
    needed, available = words.size(pressure.needed_bytes), words.size(pressure.available_bytes)
    peaks = [row.peak_allocated_bytes for row in evidence.recent if row.peak_allocated_bytes is not None]
    if pressure.is_of_machine:
        text = f"All processes together use {needed} of this machine's {available}"
        text += f"; the last steps peaked at {words.size(max(peaks))}" if peaks else ""
    else:
        left = words.size(max(0, pressure.available_bytes - pressure.needed_bytes))
        text = (
            f"The last steps needed {needed} of the {available} available to this run ({pressure.what}): "
            f"{left} free"
        )
    return MemoryVerdict(MemoryState.FITS, f"{text}{_no_leak(evidence)}.")


def _unknown(evidence: MemoryEvidence) -> str:
    if not evidence.recent:
        return "No step has finished, so the memory the run needs is unknown."
    peaks = [row.peak_allocated_bytes for row in evidence.recent if row.peak_allocated_bytes is not None]
    if not peaks:
        return "This device does not report the memory the steps need."
    peak = words.size(max(peaks))
    return f"The last steps peaked at {peak}; the memory available to the run is not in its log."


def _no_leak(evidence: MemoryEvidence) -> str:
    """A clause that nothing leaks, where every series was observed for long enough."""
    steady = (LeakVerdict.STEADY, LeakVerdict.SAWTOOTH)
    rows = current_leaks(evidence.leaks)
    return ", and nothing leaks" if rows and all(row.verdict in steady for row in rows) else ""

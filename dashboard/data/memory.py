"""The data of the Memory page, read from a run's log."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dashboard.data.captures import captured
from dashboard.data.figures import MAX_BUCKETS, RECENT_STEPS, controls_stamp, read_token
from dashboard.data.runs import RunView, home
from harness import words
from harness.analysis.memory.empty_cache import (
    BEFORE_STEPS,
    FOLLOWED_STEPS,
    EmptyCacheEffect,
    empty_cache_effect,
)
from harness.analysis.memory.snapshots import LEAST_GROWN_BYTES, suspect_sentence
from harness.analysis.memory.verdict import cap_refusal
from harness.analysis.oom.report import OomReport, report_from_json
from harness.errors import LogError
from harness.predict.report_predictions import add_predictions
from harness.records.memory import (
    AllocationRow,
    LeakRow,
    MemorySampleRow,
    ModuleMemoryRow,
    OomReportRow,
    SnapshotReason,
    SnapshotRow,
)
from harness.records.run import EventKind, EventRow, StepRow
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.store.series import StepSeries

DRAWN = ("allocated_bytes", "reserved_bytes", "peak_allocated_bytes", "inactive_split_bytes")
_MAX_SAMPLES = 400
# Eight times the size that a raw snapshot is limited to when it is written.
_MOST_RAW_BYTES = 256 << 20
# The newest calls of empty_cache() are shown.
_MOST_EMPTY_CACHE = 12


class MemorySeries(NamedTuple):
    """The data of one tick: memory by step, and the latest memory sample."""

    # None before the first step.
    steps: StepSeries | None
    samples: Sequence[MemorySampleRow]
    retries: Sequence[tuple[int, int]]
    events: Sequence[EventRow]
    recent: Sequence[StepRow]
    latest: MemorySampleRow | None
    # The newest verdict on each series.
    leaks: Sequence[LeakRow]
    # Every time memory ran out, in order.
    ooms: Sequence[EventRow]
    # The error that ended the run because its memory cap was too small.
    refusal: EventRow | None
    last: int | None


class OomEntry(NamedTuple):
    """An out-of-memory report; `report` is None if it was written by an incompatible version."""

    row: OomReportRow
    report: OomReport | None


class Findings(NamedTuple):
    """Data that changes rarely: snapshots, the newest memory by module, OOM reports, empty_cache() calls."""

    snapshots: Sequence[SnapshotRow]
    census: Sequence[ModuleMemoryRow]
    # The snapshot of the memory by module.
    census_of: SnapshotRow | None
    reports: Sequence[OomEntry]
    # The newest first.
    empty_cache: Sequence[EmptyCacheEffect]
    # Injected faults, in order.
    injected: Sequence[EventRow]
    # A sentence on the sites that retained memory in the newest recorded snapshot; None without any.
    suspect: str | None


NOTHING = Findings((), (), None, (), (), (), None)


def stamps(folder: RunFolder) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Return two tokens: one changes with anything new in the log, the other with findings or controls."""
    token = read_token(folder)
    findings_token: tuple[object, ...] = ()
    try:
        with LogReader(folder.log) as reader:
            kinds = (EventKind.EMPTY_CACHE, EventKind.INJECTED)
            newest_event = max((at for at, event in reader.events() if event.kind in kinds), default=0)
            snapshots, reports = reader.memory.snapshots(), reader.memory.oom_reports()
            findings_token = (len(snapshots), len(reports), newest_event)
    except LogError:
        pass
    return token.log, (*findings_token, *controls_stamp(token))


def memory_series(folder: RunFolder, view: tuple[float, float] | None) -> MemorySeries:
    """Read memory by step, of the run or, zoomed in, of the view with half its width on either side.

    Raises LogError.
    """
    with LogReader(folder.log) as reader:
        extent = reader.extent()
        events = [event for _, event in reader.events()]
        leaks, latest = reader.memory.current_leaks(), reader.memory.latest_sample()
        ooms = [event for event in events if event.kind == EventKind.OOM]
        refusal = cap_refusal(events)
        if extent.first is None or extent.last is None:
            return MemorySeries(None, (), (), events, (), latest, leaks, ooms, refusal, None)
        first, last = extent.first, extent.last
        if view is not None:
            margin = (view[1] - view[0]) / 2
            first = max(first, int(view[0] - margin))
            last = max(first, min(last, int(view[1] + margin) + 1))
        series = reader.series(first, last, MAX_BUCKETS, DRAWN)
        samples = reader.memory.samples(first, last, _MAX_SAMPLES)
        retries = reader.memory.retries([row.step for row in samples])
        recent = reader.recent_steps(RECENT_STEPS)
    end = last + 1 if last == extent.last else last  # A step that failed is not in the log; its event is.
    inside = [event for event in events if first <= event.step <= end]
    return MemorySeries(series, samples, retries, inside, recent, latest, leaks, ooms, refusal, extent.last)


def findings(view: RunView) -> Findings:
    """Read the findings. Raises LogError."""
    with LogReader(view.folder.log) as reader:
        snapshots = reader.memory.snapshots()
        census: list[ModuleMemoryRow] = []
        census_of = None
        for census_of in reversed(snapshots):
            census = reader.memory.modules(census_of.snapshot_id)
            if census:
                break
        reports = [OomEntry(row, _parse_report(row, view)) for row in reader.memory.oom_reports()]
        events = [event for _, event in reader.events()]
        calls = [event for event in events if event.kind == EventKind.EMPTY_CACHE][-_MOST_EMPTY_CACHE:]
        versions = [row.step for row in view.history]
        releases = [_empty_cache_effect(reader, event, versions) for event in reversed(calls)]
        suspect = _suspect(reader, snapshots)
    injected = [event for event in events if event.kind == EventKind.INJECTED]
    return Findings(snapshots, census, census_of if census else None, reports, releases, injected, suspect)


def allocations(folder: RunFolder, snapshot_id: int) -> list[AllocationRow]:
    """Read live memory by allocation site at a snapshot, the largest first. Raises LogError."""
    with LogReader(folder.log) as reader:
        return reader.memory.allocations(snapshot_id)


def raw_snapshot(folder: RunFolder, snapshot: SnapshotRow) -> Path | None:
    """Return the path of the snapshot's file for PyTorch's memory_viz; None if it is missing or too large for
    a download."""
    path = captured(folder, snapshot.file)
    try:
        return path if path is not None and path.stat().st_size <= _MOST_RAW_BYTES else None
    except OSError:
        return None


def _parse_report(row: OomReportRow, view: RunView) -> OomReport | None:
    try:
        return add_predictions(report_from_json(row.report), view.history, view.device, home().path)
    except ValueError:
        return None


def _suspect(reader: LogReader, snapshots: Sequence[SnapshotRow]) -> str | None:
    """Return what the newest snapshot that tracked steps shows of a leak: the site that retains tensors, or
    else the result of the hunt for the leak, such as retained graphs: their nodes are no tensors."""
    tracked = [row for row in snapshots if row.tracked_steps]
    if not tracked:
        return None
    newest = tracked[-1]
    sites = reader.memory.allocations(newest.snapshot_id)
    if any((site.grown_bytes or 0) >= LEAST_GROWN_BYTES for site in sites):
        sentence = suspect_sentence(sites, newest.tracked_steps)
        return f"As the snapshot at step {words.count(newest.step)} shows, {sentence}"
    if newest.reason == SnapshotReason.LEAK:
        return f"Snapshot at step {words.count(newest.step)}: {newest.message}"
    return None


def _empty_cache_effect(reader: LogReader, event: EventRow, versions: Sequence[int]) -> EmptyCacheEffect:
    """Compare the steps before and after a call, up to the next change of settings."""
    end = min([event.step + FOLLOWED_STEPS, *(step for step in versions if step > event.step)])
    before = reader.steps(event.step - 2 * BEFORE_STEPS, event.step - 1)
    return empty_cache_effect(event, before, reader.steps(event.step, end - 1))

"""Reads everything that the report of a run shows, from its log."""

from collections.abc import Sequence
from typing import NamedTuple

from harness.analysis.compare.facts import RunFacts
from harness.analysis.oom.report import report_from_json
from harness.analysis.oom.text import render
from harness.analysis.profiles import ProfilePart, by_operator
from harness.analysis.timing.verdict import verdict
from harness.errors import LogMissingError
from harness.records.memory import LeakRow, OomReportRow
from harness.records.profile import ProfileRow
from harness.records.run import DeviceKind, EventRow
from harness.settings.spec import change_title
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.store.series import StepSeries
from harness.supervisor.changes import observe_version
from harness.supervisor.comparing import read_curves, read_facts
from harness.supervisor.measuring import read_measurements
from harness.supervisor.run_events import read_events
from harness.supervisor.summary import RunSummary

_MOST_CHANGES = 12
_MOST_EVENTS = 40
_MOST_OPERATORS = 20


class ChangeReport(NamedTuple):
    """A change of settings, with the sentence on the observed change."""

    step: int
    title: str
    verdict: str


class ReportFacts(NamedTuple):
    """Everything that the report of one run shows; empty or None where nothing was recorded."""

    summary: RunSummary
    facts: RunFacts
    curves: StepSeries | None
    is_cpu: bool
    # The sentence on what bounds the run.
    bound: str | None
    # The newest out-of-memory report as text, and how many there are.
    oom_text: str | None
    ooms: int
    # The current verdict on each series.
    leaks: Sequence[LeakRow]
    changes: Sequence[ChangeReport]
    # The same of measurements, with the verdict of each.
    measured: Sequence[ChangeReport]
    profile: ProfileRow | None
    operators: Sequence[ProfilePart]
    events: Sequence[EventRow]


def read_report(folder: RunFolder, summary: RunSummary) -> ReportFacts:
    """Read a run. Raises LogError, but not for a run without a log yet."""
    report = ReportFacts(
        summary,
        read_facts(folder, summary),
        read_curves(folder),
        summary.device is not None and summary.device.kind is DeviceKind.CPU,
        None,
        None,
        0,
        (),
        (),
        (),
        None,
        (),
        (),
    )
    timing = report.facts.timing
    if timing is not None and timing.cpu is not None:
        report = report._replace(bound=verdict(timing, not report.is_cpu).sentence)
    try:
        with LogReader(folder.log) as reader:
            return _read(reader, report)
    except LogMissingError:
        return report


def _read(reader: LogReader, report: ReportFacts) -> ReportFacts:
    ooms = reader.memory.oom_reports()
    profiles = [row for row in reader.profiles.all() if row.steps]
    profile = profiles[-1] if profiles else None
    operators = [] if profile is None else by_operator(reader.profiles.operators(profile.profile_id), profile)
    return report._replace(
        oom_text=_oom_text(ooms[-1]) if ooms else None,
        ooms=len(ooms),
        leaks=reader.memory.current_leaks(),
        changes=_changes(reader, report.summary.status.state.is_over),
        measured=_measured(reader, report.summary.status.state.is_over),
        profile=profile,
        operators=operators[:_MOST_OPERATORS],
        events=read_events(reader, report.summary)[-_MOST_EVENTS:],
    )


def _oom_text(row: OomReportRow) -> str:
    try:
        return render(report_from_json(row.report))
    except ValueError:  # Written by another version.
        return row.outcome


def _changes(reader: LogReader, is_over: bool) -> list[ChangeReport]:
    history = reader.settings_history()
    versions = [at for at in range(1, len(history)) if history[at].is_change][-_MOST_CHANGES:]
    return [
        ChangeReport(
            history[at].step,
            change_title(history[at].changes),
            observe_version(reader, history, at, is_over).verdict,
        )
        for at in versions
    ]


def _measured(reader: LogReader, is_over: bool) -> list[ChangeReport]:
    measurements = read_measurements(reader, is_over, most=_MOST_CHANGES)
    return [ChangeReport(one.plan.step, one.title, one.sentence) for one in measurements]

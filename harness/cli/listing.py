"""`show`, `settings`: information on one run, and on settings."""

import argparse
import json
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from harness import words
from harness.analysis.oom.report import report_from_json
from harness.analysis.oom.text import render
from harness.analysis.ranks.stragglers import compare_ranks
from harness.analysis.run_list import UNREADABLE
from harness.cli.changes import change_facts, changes_json, changes_of
from harness.cli.measuring import measurement_facts, measurements_of
from harness.cli.overhead import overhead_facts, overhead_json, overhead_of
from harness.cli.parser import Parser, add_command
from harness.cli.profiling import profile_facts, profiles_of
from harness.cli.ranks import comparison_json, rank_facts
from harness.cli.requests import request_facts, requests_json, requests_of
from harness.cli.shell import RUN_HELP, Shell, find_run
from harness.cli.timing import last_timing, timing_facts, timing_json
from harness.errors import LogError
from harness.predict.report_predictions import add_predictions
from harness.records.memory import OomReportRow
from harness.records.run import DeviceFacts, EventKind, EventRow, SettingsRow
from harness.settings.spec import SPECS, text_of_value, value_text
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.labels import read_labels
from harness.store.reader import LogReader
from harness.supervisor import RunSummary
from harness.supervisor.measuring import measurement_json
from harness.supervisor.origin import NO_OUTPUT, environment_text, origin_facts
from harness.supervisor.ranks import parts_of, read_rank_steps, read_ranks
from harness.supervisor.refit import refit_peak
from harness.supervisor.run_events import read_events
from harness.supervisor.summary import pace_facts

_MOST_EVENTS = 12
_LONGEST_CELL = 80
_ALWAYS_SHOWN = ("model", "preset", "data", "batch_size")


def add_commands(commands: "argparse._SubParsersAction[Parser]") -> None:
    """Add the commands of this module."""
    show = add_command(commands, "show", "one run: state, figures, settings, events", show_run, is_json=True)
    show.add_argument("run", metavar="RUN", help=RUN_HELP)
    add_command(
        commands, "settings", "every setting, its values and its default", list_settings, is_json=True
    )


def summary_json(run: RunSummary) -> dict[str, Any]:
    """Return a run's summary for JSON, as `stepscope list` does."""
    return run.entry(read_labels(RunFolder(run.path)))._asdict()


def show_run(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope show RUN`."""
    supervisor = shell.supervisor(arguments)
    folder = find_run(supervisor.home, arguments.run)
    supervisor.status(folder)
    run = supervisor.summary(folder)
    events = _events(folder, run)
    first, effective = _first_and_last_settings(folder)
    reports = _oom_reports(folder)
    timing = last_timing(folder, run.device)
    profiles = profiles_of(folder)
    overhead = overhead_of(folder, run)
    changes = changes_of(folder, run.status.state.is_over)
    measurements = measurements_of(folder, run.status.state.is_over)
    requests = requests_of(folder)
    parts = parts_of(folder)
    ranks = read_ranks(parts, time.time())
    comparison = compare_ranks(read_rank_steps(parts))
    if arguments.is_json:
        sections = {
            "effective_settings": effective,
            "events": [event._asdict() for event in events],
            "timing": timing_json(timing),
            "own_cost": overhead_json(overhead),
            "requests": requests_json(requests),
            "observed_changes": changes_json(changes),
            "measurements": [measurement_json(one) for one in measurements],
            "ranks": [rank._asdict() | {"sentence": rank.sentence} for rank in ranks],
            "rank_comparison": comparison_json(comparison),
            "profiles": [profile._asdict() for profile in profiles],
            "oom_reports": [report._asdict() | {"report": json.loads(report.report)} for report in reports],
        }
        shell.print_json(summary_json(run) | sections)
        return 0
    facts = timing_facts(timing) + profile_facts(profiles) + overhead_facts(overhead) + change_facts(changes)
    facts += measurement_facts(measurements)
    facts += request_facts(requests, is_over=run.status.state.is_over)
    facts += (
        rank_facts(ranks, comparison) + _settings_facts(run, first, effective) + _refit_facts(run, folder)
    )
    shell.print_table(("", ""), _facts(run) + _label_facts(folder) + facts)
    if events:
        shell.print_line("")
        rows = [(words.count(e.step), e.label, e.message) for e in _newest(events)]
        shell.print_table(("STEP>", "EVENT", ""), rows)
    if reports:
        _show_oom(reports, folder, run.device, supervisor.home, shell)
    return 0


def _refit_facts(run: RunSummary, folder: RunFolder) -> list[tuple[str, str]]:
    """Return the peaks of other batch sizes in the run of a script, from its own steps."""
    if run.script is None:
        return []
    try:
        with LogReader(folder.log) as reader:
            refit = refit_peak(reader)
    except LogError:
        return []
    limit_bytes = None if run.device is None else run.device.memory_bytes
    return [] if refit is None else [("other batches", refit.sentence(limit_bytes))]


def _show_oom(
    reports: list[OomReportRow], folder: RunFolder, device: DeviceFacts | None, home: Home, shell: Shell
) -> None:
    """Print the newest OOM report, and the folder of the others."""
    try:
        report = add_predictions(report_from_json(reports[-1].report), _history(folder), device, home.path)
        lines = render(report).splitlines()
    except ValueError:  # Written by another version.
        lines = [reports[-1].outcome]
    for line in ("", *lines):
        shell.print_line(line)
    if len(reports) > 1:
        shell.print_line(f"This is the last of {len(reports):,} reports; all are in {folder.captures}.")


def _facts(run: RunSummary) -> list[tuple[str, str]]:
    state = run.status.state.value if run.problem is None else UNREADABLE
    device = words.NOT_AVAILABLE if run.device is None else f"{run.device.torch_name}, {run.device.name}"
    facts = [
        ("run", f"{run.name} ({run.run_id})"),
        ("state", f"{state.replace('_', ' ')}: {run.status.message}"),
        ("device", device),
        ("parameters", words.count(run.parameters)),
        ("steps", words.count(run.steps)),
        ("loss", words.figure(run.loss)),
        *pace_facts(run),
        ("allocated", words.size(run.allocated_bytes)),
        ("peak allocated", words.size(run.peak_allocated_bytes)),
        ("peak reserved", words.size(run.peak_reserved_bytes)),
        ("started", words.moment(run.started_unix_ns)),
        ("ended", words.moment(run.ended_unix_ns)),
        ("folder", str(run.path)),
        ("environment", environment_text(run.versions)),
    ]
    if run.script is not None:
        facts += [*origin_facts(run.script), ("output", NO_OUTPUT)]
    if run.is_simulated:
        facts.insert(1, ("simulated", "written by the demo; nothing was trained"))
    if run.imported is not None:
        facts.insert(1, ("imported", f"{run.imported.source} {run.imported.path}"))
    return facts


def _label_facts(folder: RunFolder) -> list[tuple[str, str]]:
    labels = read_labels(folder)
    facts = [("tags", " ".join(labels.tags)), ("note", labels.note)]
    return [(name, text) for name, text in facts if text]


def _settings_facts(
    run: RunSummary, first: Mapping[str, Any], effective: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Return the settings of the run, without defaults of a run of the catalog, and the changes since its
    start. `first` are the first known values, `effective` the last ones."""
    if run.settings is None:
        return []
    # Some settings of a script are known only once it opens a loader.
    initial = {**first, **run.settings.to_json()} if run.settings.complete is None else run.settings.to_json()
    always = _ALWAYS_SHOWN if run.settings.complete is not None else tuple(initial)
    names = [name for name in initial if name in always or initial[name] != SPECS[name].default]
    facts = [("settings", _assignments(initial, names))]
    changed = [name for name in initial if name in effective and effective[name] != initial[name]]
    if changed:
        facts.append(("changed to", _assignments(effective, changed)))
    return facts


def _assignments(values: Mapping[str, Any], names: list[str]) -> str:
    return ", ".join(f"{name}={_value(name, values[name])}" for name in names)


def _value(name: str, value: Any) -> str:
    text = text_of_value(name, value)
    return text if name in SPECS else words.clip(text, _LONGEST_CELL)


def _first_and_last_settings(folder: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the first known value of each setting, and the last values in effect; empty if the log has
    none."""
    history = _history(folder)
    try:
        first = {name: value for row in reversed(history) for name, value in row.values.items()}
        return first, dict(history[-1].values) if history else {}
    except ValueError:
        return {}, {}


def _history(folder: RunFolder) -> list[SettingsRow]:
    try:
        with LogReader(folder.log) as reader:
            return reader.settings_history()
    except LogError:
        return []


def _newest(events: list[EventRow]) -> list[EventRow]:
    """Return the newest events; of evaluations only the last one, as there may be many."""
    evaluations = [event for event in events if event.kind == EventKind.EVALUATION]
    listed = [event for event in events if event.kind != EventKind.EVALUATION or event is evaluations[-1]]
    return listed[-_MOST_EVENTS:]


def _events(folder: RunFolder, run: RunSummary) -> list[EventRow]:
    try:
        with LogReader(folder.log) as reader:
            return read_events(reader, run)
    except LogError:
        return []


def _oom_reports(folder: RunFolder) -> list[OomReportRow]:
    try:
        with LogReader(folder.log) as reader:
            return reader.memory.oom_reports()
    except LogError:
        return []


def list_settings(arguments: Namespace, shell: Shell) -> int:
    """Run `stepscope settings`."""
    if arguments.is_json:
        shell.print_json([
            spec._asdict() | {"flag": spec.flag, "variable": spec.variable, "is_live": spec.is_live}
            | {"devices": sorted(spec.devices)}
            for spec in SPECS.values()
        ])  # fmt: skip
        return 0
    rows = [
        (spec.flag, spec.bounds, value_text(spec, spec.default), spec.effect.value, spec.variable)
        for spec in SPECS.values()
    ]
    shell.print_table(("FLAG", "VALUES", "DEFAULT", "TAKES EFFECT", "VARIABLE"), rows)
    return 0

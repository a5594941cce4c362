"""Out-of-memory reports on scripts: only settings that the run has, and the history in its log."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import LiveVariable, OomPhase, report_from_json, to_json
from harness.analysis.oom.text import render
from harness.records.memory import LeakSeries
from harness.records.run import SettingsRow
from harness.settings import Settings
from harness.settings.spec import SPECS
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.watch.memory import MemoryWatch
from harness.watch.oom.history import RunHistory, read_history
from harness.watch.oom.reporter import OomReporter, Subject
from tests.leak_factories import MIB, a_leak
from tests.oom_factories import some_facts
from tests.store_factories import a_run, a_step
from tests.train_factories import FakeJournal, a_context, a_device, a_workload


def a_history(path: Path, **settings: Any) -> RunHistory:
    """The history of a script that runs out of memory in step 11, with these settings."""
    steps = [a_step(step)._replace(settings_version=1) for step in range(1, 11)]
    with LogAppender(path, a_run()) as appender:
        appender.append(steps, [SettingsRow(1, 1, 0, json.dumps(settings), "{}", None)])
    in_effect = Settings(**settings)
    return read_history(path, 11, in_effect, on_cpu=True)


def test_the_last_steps_of_a_script_without_a_batch_size_are_read(tmp_path: Path) -> None:
    history = a_history(tmp_path / "log.sqlite3", amp="bf16")
    assert [step.step for step in history.steps][-1] == 10
    assert history.peaks == ()
    assert history.has("amp")
    assert not history.has("batch_size")


@pytest.mark.parametrize(("names", "text"), [({"amp", "max_steps"}, "AMP off"), (set(SPECS), "batch 8")])
def test_where_the_log_cannot_be_read_only_settings_from_the_start_are_stated(
    tmp_path: Path, names: set[str], text: str
) -> None:
    context, workload = a_context(a_device(), FakeJournal(), lambda: 77), a_workload()
    memory = MemoryWatch(context.device)
    reporter = OomReporter(context, memory, RunFolder(tmp_path), workload.settings, frozenset(names))
    error, subject = MemoryError(), Subject(workload)
    report = reporter.explain(reporter.capture(error, 7, OomPhase.BETWEEN, None, subject))
    assert not report.facts.steps
    assert report.facts.settings_text.split(", ")[0] == text
    assert (report.facts.grad_accumulation is None) is ("grad_accumulation" not in names)


def test_peaks_of_a_script_with_a_batch_size_are_read(tmp_path: Path) -> None:
    history = a_history(tmp_path / "log.sqlite3", amp="off", batch_size=32)
    assert [peak.batch_size for peak in history.peaks] == [32]


def test_a_report_on_a_script_states_no_setting_that_it_does_not_have() -> None:
    facts = some_facts(batch_size=None, grad_accumulation=None, amp="bf16", checkpointing=None)
    report = explain(facts)
    text = render(report)
    assert "Settings    AMP bf16\n" in text
    assert "batch" not in text.split("Recent steps")[0]
    assert report_from_json(to_json(report)) == report


def test_a_report_on_a_run_of_the_catalog_states_all_of_them() -> None:
    assert some_facts().settings_text.startswith("batch ")
    assert "checkpointing off" in some_facts().settings_text


@pytest.mark.parametrize(("slope", "names"), [(None, ["batch", "other"]), (MIB, ["batch"])])
def test_beside_a_leak_variables_are_listed_that_hold_a_part_of_it(
    tmp_path: Path, slope: int | None, names: list[str]
) -> None:
    folder, workload = RunFolder(tmp_path), a_workload()
    leaks = [] if slope is None else [a_leak()._replace(series=LeakSeries.HOST, bytes_per_step=slope)]
    with LogAppender(folder.log, a_run()) as appender:
        appender.append([a_step(step) for step in range(1, 11)], leaks)
    context = a_context(a_device(), FakeJournal(), lambda: 77)
    reporter = OomReporter(context, MemoryWatch(context.device), folder, workload.settings, frozenset())
    capture = reporter.capture(MemoryError(), 106, OomPhase.FORWARD, None, Subject(workload))
    variables = (LiveVariable("batch", "a.py:1 f", 2 * MIB, 1), LiveVariable("other", "a.py:1 f", 16_384, 1))
    report = reporter.explain(capture._replace(variables=variables))
    assert [one.name for one in report.facts.variables] == names

"""Out-of-memory reports on scripts: only settings that the run has, and the history in its log."""

import json
from pathlib import Path
from typing import Any

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import report_from_json, to_json
from harness.analysis.oom.text import render
from harness.records.run import SettingsRow
from harness.settings import Settings
from harness.store.appender import LogAppender
from harness.watch.oom.history import RunHistory, read_history
from tests.oom_factories import some_facts
from tests.store_factories import a_run, a_step


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


def test_peaks_of_a_script_with_a_batch_size_are_read(tmp_path: Path) -> None:
    history = a_history(tmp_path / "log.sqlite3", amp="off", batch_size=48)
    assert [peak.batch_size for peak in history.peaks] == [48]


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

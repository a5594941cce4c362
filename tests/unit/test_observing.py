"""Test what is read from a log to compare the steps around a change."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.analysis.effect.observing import missing_time
from harness.cli import main
from harness.records.reference import ReferenceRow
from harness.records.run import SettingsRow, StepFlag, StepRow
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.changes import HISTORY_S, observe_version
from tests.store_factories import a_run, a_step

MS = 1_000_000


def written(path: Path, parts: Sequence[tuple[int, int]], work: Sequence[ReferenceRow] = ()) -> Path:
    """A log of one version of the settings for each (count, duration in µs) of steps; the first five steps of
    a version are flagged."""
    rows: list[StepRow] = []
    versions: list[SettingsRow] = []
    t_ns = 0
    for version, (count, duration_us) in enumerate(parts, 1):
        settings = Settings(batch_size=version)
        step = len(rows) + 1
        versions.append(
            SettingsRow(
                version, step, t_ns, settings.model_dump_json(), json.dumps({"batch_size": version}), None
            )
        )
        for number in range(count):
            t_ns += duration_us * 1000
            rows.append(
                a_step(step + number)._replace(
                    t_ns=t_ns,
                    step_ns=duration_us * 1000,
                    settings_version=version,
                    flags=int(StepFlag.TRANSITION) if number < 5 else 0,
                )
            )
    with LogAppender(path, a_run()) as appender:
        appender.append(rows, [*versions, *work])
    return path


def test_a_change_is_compared_with_the_settings_before_it(tmp_path: Path) -> None:
    log = written(tmp_path / "log.sqlite3", [(600, 20_000), (600, 22_000), (600, 20_000)])
    with LogReader(log) as reader:
        history = reader.settings_history()
        first, second = (observe_version(reader, history, at) for at in (1, 2))
    assert first.step_ns is not None
    assert second.step_ns is not None
    assert first.step_ns.ratio == pytest.approx(1.1)
    assert second.step_ns.ratio == pytest.approx(1 / 1.1)
    assert first.left_out == second.left_out == 5


def test_another_change_too_soon_ends_the_window_there(tmp_path: Path) -> None:
    log = written(tmp_path / "log.sqlite3", [(600, 20_000), (200, 22_000), (600, 20_000)])
    with LogReader(log) as reader:
        history = reader.settings_history()
        verdicts = [observe_version(reader, history, at).verdict for at in (1, 2)]
    assert verdicts == [
        "Not compared: 4 s after the change, 10 s are needed.",
        "Not compared: 4 s before the change, 10 s are needed.",
    ]


def test_a_run_that_is_over_is_not_measured_any_more(tmp_path: Path) -> None:
    log = written(tmp_path / "log.sqlite3", [(600, 20_000), (200, 22_000)])
    with LogReader(log) as reader:
        history = reader.settings_history()
        assert observe_version(reader, history, 1).verdict == "Measuring: 4 of 10 s after the change."
        over = observe_version(reader, history, 1, is_over=True)
    assert over.verdict == "Not compared: 4 s after the change, 10 s are needed."


def test_the_shell_shows_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    home = Home.locate(None, os.environ)
    folder = home.create("changed", resolve({"model": "mlp"}), 1_700_000_000_000_000_000)
    written(folder.log, [(600, 20_000), (600, 22_000), (100, 22_000)])
    assert main(["show", "changed"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "change at step 601 batch 2: Observed over 10 s on each side: "
        "undisturbed step 20.0 ms → 22.0 ms (+10 %, +7.8 % to +12 %)" in text
    )
    assert "change at step 1,201 batch 3: Not compared: 2 s after the change" in text
    assert main(["show", "changed", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["observed_changes"]
    assert (first["step"], first["changed"]) == (601, {"batch_size": 2})
    assert first["step_ns"]["ratio"] == pytest.approx(1.1)
    assert first["step_ns"]["low"] < 1.1 < first["step_ns"]["high"]
    assert second["step_ns"] is None


@pytest.mark.slow
def test_short_steps_are_read_one_in_several(tmp_path: Path) -> None:
    """Steps of 1 ms, every seventh of them, stand for all."""
    log = written(tmp_path / "log.sqlite3", [(12_000, 1_000), (12_000, 1_050)])
    with LogReader(log) as reader:
        history = reader.settings_history()
        change = observe_version(reader, history, 1)
        read = reader.step_times(1, 12_000, 7)
    assert change.step_ns is not None
    assert change.step_ns.ratio == pytest.approx(1.05)
    assert change.left_out == 5
    assert change.seconds == pytest.approx(10, rel=0.01)
    assert [time.step for time in read[:8]] == [1, 2, 3, 4, 5, 7, 14, 21]
    assert HISTORY_S >= 2 * 40


def test_reference_work_in_the_log_takes_the_machine_s_speed_out(tmp_path: Path) -> None:
    """Steps and work take half as long again after the change."""
    work = [ReferenceRow(step, 15_000 if step <= 600 else 22_500) for step in range(1, 1201, 2)]
    log = written(tmp_path / "log.sqlite3", [(600, 20_000), (600, 30_000)], work)
    with LogReader(log) as reader:
        assert len(reader.reference.steps(1, 1200)) == 600
        observed = observe_version(reader, reader.settings_history(), 1)
    assert observed.is_at_equal_speed
    assert observed.step_ns is not None
    assert observed.step_ns.ratio == pytest.approx(1)


def test_a_change_that_no_step_followed_has_no_seconds_below_zero() -> None:
    assert missing_time(20, -0.4, True) == "Not compared: 0 s after the change, 10 s are needed."
    assert missing_time(20, -0.4, False) == "Measuring: 0 of 10 s after the change."
    assert missing_time(-0.4, 20, False) == "Not compared: 0 s before the change, 10 s are needed."

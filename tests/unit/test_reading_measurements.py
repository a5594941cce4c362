"""Measurements read from a log, in the shell, and judged for the training process."""

import json
import os
import sqlite3
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main, measuring
from harness.records.measurement import MeasurementEnd, expected_s
from harness.records.run import CommandKind, RunState, SettingsRow
from harness.settings.resolve import resolve
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.measurement_log import MeasurementLog
from harness.store.reader import LogReader
from harness.supervisor.measuring import long_measurement, read_measurement, read_measurements
from harness.words import span
from tests.measuring_factories import MEASURED, write_measured_log
from tests.store_factories import a_run, write_log


def a_measured_run(
    ratio: float = 0.8, end: MeasurementEnd | None = MeasurementEnd.COMPLETED, **options: Any
) -> RunFolder:
    folder = Home.locate(None, os.environ).create("measured", resolve({"model": "mlp"}), time.time_ns())
    run = a_run(folder.run_id, "measured")._replace(state="finished", state_message="Took all steps.")
    write_measured_log(folder.log, ratio, end=end, keeps_if_better=True, run=run, **options)
    return folder


def test_the_effect_is_read_from_the_steps_of_the_blocks(tmp_path: Path) -> None:
    write_measured_log(tmp_path / "log.sqlite3", 0.8)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        measurement = read_measurement(reader, 1)
        assert measurement is not None
        assert measurement.title == "AMP off → bf16"
        assert (measurement.pairs, measurement.remaining_s, measurement.is_kept) == (8, None, False)
        assert measurement.effect.main.verdict == "faster"
        assert measurement.effect.main.effect == pytest.approx(-0.2, abs=0.005)
        assert measurement.reasons == []
        assert read_measurement(reader, 2) is None


def test_a_pair_that_is_recorded_between_two_queries_is_left_for_the_next_reading(tmp_path: Path) -> None:
    write_measured_log(tmp_path / "log.sqlite3", pairs=10, planned=64, end=None)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        blocks = reader.measurements.blocks
        reader.measurements.blocks = lambda number: blocks(number)[:18]  # type: ignore[method-assign]
        measurement = read_measurement(reader, 1)
    assert measurement is not None
    assert (measurement.pairs, measurement.effect.pairs) == (9, 9)


def test_a_measurement_in_progress_has_an_expected_time_to_its_end(tmp_path: Path) -> None:
    write_measured_log(tmp_path / "log.sqlite3", end=None)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        measurement = read_measurement(reader, 1)
        assert measurement is not None
        assert not measurement.is_over
        assert measurement.remaining_s == 0
        over = read_measurement(reader, 1, is_run_over=True)
        assert over is not None
        assert over.outcome == "The run ended in the middle."


def test_before_the_first_pair_the_least_duration_follows_from_the_steps_before(tmp_path: Path) -> None:
    write_measured_log(tmp_path / "log.sqlite3", end=None)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        measurement = read_measurement(reader, 1)
        step_ns = reader.steps(39, 39)[0].step_ns
    assert measurement is not None
    assert measurement.expected_s == pytest.approx(expected_s(step_ns / 1e9, pairs=8), rel=0.2)
    assert (
        measurement._replace(blocks=()).remaining_text(RunState.RUNNING)
        == f"at least {span(measurement.expected_s)}"
    )
    assert measurement.remaining_text(RunState.RUNNING) == "about 0 s left"
    assert measurement.remaining_text(RunState.PAUSED) == "waiting: the run is paused"
    ended = measurement._replace(is_over=True)
    assert (ended.remaining_text(RunState.RUNNING), ended.remaining_text(RunState.PAUSED)) == (None, None)


def test_a_measurement_of_more_than_half_an_hour_is_announced() -> None:
    assert long_measurement(None, 8) is None
    assert long_measurement(1e9, 8) is None
    announcement = long_measurement(5e9, 8)
    assert announcement is not None
    assert announcement.startswith("This takes at least 49 min 35 s: a step takes 5.00 s")
    assert "595 steps" in announcement


def test_steps_missing_in_the_log_are_a_reason_for_doubt(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    write_measured_log(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM steps WHERE step IN (60, 61)")
    connection.close()
    with LogReader(path) as reader:
        measurement = read_measurement(reader, 1)
        assert measurement is not None
        assert measurement.reasons == ["2 rows are missing in the log."]


def test_the_blocks_of_a_measurement_are_no_changes_of_settings(tmp_path: Path) -> None:
    write_measured_log(tmp_path / "log.sqlite3")
    with LogReader(tmp_path / "log.sqlite3") as reader:
        first, last = reader.settings_history()
        assert (first.version, last.is_change, last.command_id) == (1, False, MEASURED)
        assert json.loads(last.settings)["amp"] == "off"
        assert reader.stamp()[-4:-1] == (1, 1, 1)


def test_settings_are_those_before_it_while_a_measurement_goes_on(tmp_path: Path) -> None:
    write_measured_log(tmp_path / "log.sqlite3", end=None)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        assert [row.version for row in reader.settings_history()] == [1]
        assert reader.stamp()[-4:-1] == (1, 1, -1)


def test_a_log_without_measurements_has_none(tmp_path: Path) -> None:
    with LogReader(write_log(tmp_path / "log.sqlite3")) as reader:
        assert reader.measurements.plans() == []


@pytest.mark.parametrize("version", range(1, MeasurementLog.since_version))
def test_older_logs_have_no_measurements(tmp_path: Path, version: int) -> None:
    path = write_log(tmp_path / "log.sqlite3")
    connection = sqlite3.connect(path, isolation_level=None)
    for table in ("measurements", "measurement_blocks", "measurement_ends"):
        connection.execute(f"DROP TABLE {table}")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with LogReader(path) as reader:
        assert read_measurements(reader) == []
        assert reader.measurements.blocks_within(1, 100) == []
        assert reader.settings_history() == []
        assert reader.stamp()[-4:-1] == (-1, -1, -1)


def test_a_change_that_was_kept_is_shown_with_it(tmp_path: Path) -> None:
    kept = SettingsRow(99, 900, 9, "{}", '{"amp": "bf16"}', f"keep-{MEASURED}")
    write_measured_log(tmp_path / "log.sqlite3", keeps_if_better=True, more_rows=[kept])
    with LogReader(tmp_path / "log.sqlite3") as reader:
        measurement = read_measurement(reader, 1)
        assert measurement is not None
        assert measurement.is_kept
        assert measurement.sentence.endswith("The change was kept.")


def test_show_lists_measurements_and_no_observed_changes_for_their_blocks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_measured_run()
    assert main(["show", "measured"]) == 0
    text = capsys.readouterr().out
    assert "measured AMP off → bf16" in text
    assert "Faster: undisturbed step 9.94 ms → 7.96 ms (−20 %, 95 % interval" in text
    assert "change at step" not in text
    assert main(["show", "measured", "--json"]) == 0
    (measured,) = json.loads(capsys.readouterr().out)["measurements"]
    assert (measured["verdict"], measured["state"]) == ("faster", "completed")
    assert measured["figures"][0]["low"] < -0.19


@pytest.mark.parametrize(("ratio", "sent"), [(0.8, 1), (1.0, 0), (1.2, 0)])
def test_the_judge_applies_a_change_that_is_better(ratio: float, sent: int) -> None:
    folder = a_measured_run(ratio)
    assert main(["_judge", str(folder.path), "1"]) == 0
    with ControlLog(folder) as control:
        commands = [command for _, command in control.commands()]
    assert len(commands) == sent
    for command in commands:
        assert (command.kind, command.values) == (CommandKind.SET, {"amp": "bf16"})
        assert (command.command_id, command.source) == (f"keep-{MEASURED}", "measurement")


def test_the_judge_ends_a_measurement_that_is_conclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_measured_run(end=None, pairs=17, planned=64)
    monkeypatch.setattr(measuring, "_JUDGE_WAIT_S", 0.0)
    assert main(["_judge", str(folder.path), "1"]) == 1  # No process of this run will end it.
    with ControlLog(folder) as control:
        ((_, command),) = control.commands()
    assert command.kind == CommandKind.END_MEASUREMENT
    assert command.values == {"measurement": 1, "pairs": 16}


def test_the_judge_lets_an_inconclusive_measurement_go_on() -> None:
    folder = a_measured_run(1.004, end=None, pairs=16, planned=64, noise=0.2)
    assert main(["_judge", str(folder.path), "1"]) == 0
    with ControlLog(folder) as control:
        assert list(control.commands()) == []


@pytest.mark.slow
def test_pairs_after_the_look_that_was_conclusive_are_left_out(tmp_path: Path) -> None:
    for end, pairs in ((MeasurementEnd.COMPLETED, 16), (None, 16), (MeasurementEnd.STOPPED, 18)):
        path = tmp_path / f"{end}.sqlite3"
        write_measured_log(path, pairs=18, planned=64, end=end)
        with LogReader(path) as reader:
            measurement = read_measurement(reader, 1)
        assert measurement is not None
        assert (measurement.pairs, measurement.effect.pairs) == (18, pairs)


def test_progress_is_that_to_the_next_judgment(tmp_path: Path) -> None:
    write_measured_log(tmp_path / "log.sqlite3", pairs=18, planned=64, end=None)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        measurement = read_measurement(reader, 1)
    assert measurement is not None
    assert measurement.progress == "pair 18 of 32, conclusive after 16"
    assert measurement.remaining_s == pytest.approx(14 * measurement.blocks[-1].t_ns / 1e9 / 18, rel=0.2)


def test_an_ended_run_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    a_measured_run()
    assert main(["measure", "measured", "amp=bf16"]) == 1
    assert "there is no process to measure a setting of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["amp"], "not of the form name=value"),
        (["amp=bf16", "amp=off"], "given twice"),
        (["amp=bf16", "--pairs", "3"], "--pairs is 3"),
    ],
)
def test_an_invalid_request_exits_with_code_2(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    a_measured_run()
    command = ["measure", "measured", *words]
    with pytest.raises(SystemExit, match="2") if "--pairs" in words else nullcontext():
        assert main(command) == 2
    assert reason in capsys.readouterr().err

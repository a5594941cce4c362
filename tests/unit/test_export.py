"""Exports: what is read back from each format, and the sentence of each one that cannot be written."""

import csv
import io
import json
import math
import os
import re
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from harness.cli import main
from harness.demo.writing import write
from harness.errors import LogDamagedError, UsageError
from harness.export import TABLES, ExportFormat, export_run, zip_runs
from harness.records.floats import FloatState
from harness.records.overhead import UnobservedRow
from harness.records.run import ZERO_IF_UNKNOWN, StepRow
from harness.records.script import ScalarRow
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.hostile_folders import edit
from tests.store_factories import a_device_sample, a_run, a_step, an_event, steps

_NAN = FloatState.NAN.value


def a_home() -> Home:
    return Home.locate(None, os.environ)


def an_exported_run() -> RunFolder:
    """Steps 1 to 20, the last one with a loss of NaN; two scalars, one of them once infinite; a sample."""
    folder = a_home().create("cnn-1", resolve({"model": "mlp"}), 1)
    scalars = [ScalarRow(step, name, step, step / 2, 0) for name in ("b/lr", "a/acc") for step in (1, 2, 3)]
    scalars.append(ScalarRow(4, "b/lr", 4, None, FloatState.MINUS_INFINITE.value))
    run = a_run(folder.run_id)._replace(state="finished", state_message="Took all 20 steps.")
    with LogAppender(folder.log, run) as appender:
        appender.append(
            [*steps(1, 19), a_step(20, None, _NAN)._replace(flags=5)],
            [*scalars, a_device_sample(0, 5), an_event('A "quoted", sentence.')],
        )
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a table, read by the library of its format."""
    if path.suffix == ".parquet":
        return parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in file]
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("form", [ExportFormat.CSV, ExportFormat.JSONL, ExportFormat.PARQUET])
def test_every_table_is_read_back_with_its_rows(tmp_path: Path, form: ExportFormat) -> None:
    exported = export_run(an_exported_run(), tmp_path, form)
    rows = {name: len(rows_of(exported.path / f"{name}.{form}")) for name in TABLES}
    assert rows == exported.rows
    assert {name: count for name, count in rows.items() if count} == {
        "steps": 20, "scalars": 7, "device_samples": 1, "events": 1,
    }  # fmt: skip


@pytest.mark.slow
def test_numbers_and_what_was_not_measured_survive_each_format(tmp_path: Path) -> None:
    folder = an_exported_run()
    paths = {form: export_run(folder, tmp_path / form, form).path for form in list(ExportFormat)[:3]}
    csv_row, json_row, parquet_row = (rows_of(path / f"steps.{form}")[6] for form, path in paths.items())
    row = a_step(7)
    assert (csv_row["step_ns"], csv_row["tokens"]) == (str(row.step_ns), "")
    assert (json_row["step_ns"], json_row["tokens"]) == (row.step_ns, None)
    values = {k: v for k, v in row._asdict().items() if k != "loss_state"}
    assert parquet_row == {**values, "h2d_ns": None, "flags": ""}  # The step has no time of a copy.


def an_unmeasured_step() -> RunFolder:
    """A step of which nothing but its duration is known, after one with everything; an unobserved block."""
    folder = a_home().create("script-1", resolve({"model": "mlp"}), 1)
    with LogAppender(folder.log, a_run(folder.run_id)) as appender:
        unmeasured = a_step(2)._replace(**dict.fromkeys(ZERO_IF_UNKNOWN, 0))
        appender.append([a_step(1)._replace(h2d_ns=1), unmeasured], [UnobservedRow(3, 4, 5, 4, 0, None, 1)])
    return folder


def test_what_a_step_did_not_measure_is_an_empty_cell_and_no_zero(tmp_path: Path) -> None:
    folder = an_unmeasured_step()
    for form in list(ExportFormat)[:3]:
        path = export_run(folder, tmp_path / form, form).path
        before, step = rows_of(path / f"steps.{form}")
        (block,) = rows_of(path / f"unobserved_steps.{form}")
        assert all(int(before[name]) for name in ZERO_IF_UNKNOWN)
        assert {step[name] for name in ZERO_IF_UNKNOWN} <= {None, ""}
        assert block["samples"] in (None, "")


def test_blocks_of_unobserved_steps_are_no_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", an_unmeasured_step().run_id, "-o", str(tmp_path)]) == 0
    assert "2 steps, 1 unobserved block" in capsys.readouterr().out


def test_what_a_step_did_not_measure_is_no_event(tmp_path: Path) -> None:
    exported = export_run(an_unmeasured_step(), tmp_path, ExportFormat.TENSORBOARD)
    events = EventAccumulator(str(exported.path))
    events.Reload()
    for name in ZERO_IF_UNKNOWN:
        assert [event.step for event in events.Scalars(f"step/{name}")] == [1]
    assert [event.step for event in events.Scalars("step/step_ns")] == [1, 2]


def test_a_loss_of_nan_is_no_empty_cell(tmp_path: Path) -> None:
    folder = an_exported_run()
    last = {
        form: rows_of(export_run(folder, tmp_path / form, form).path / f"steps.{form}")[-1]
        for form in list(ExportFormat)[:3]
    }
    assert last[ExportFormat.CSV]["loss"] == "nan"
    assert last[ExportFormat.JSONL]["loss"] == "NaN"
    assert math.isnan(last[ExportFormat.PARQUET]["loss"])
    assert {row["flags"] for row in last.values()} == {"warm_up|profiled"}


def test_units_stand_in_the_names_of_all_numbers() -> None:
    units = ("_ns", "_bytes", "_pct", "_w", "_c", "_mhz", "_j", "_per_s", "_per_step", "_blocks")
    counts = {
        "step", "first_step", "last_step", "since_step", "steps_to_oom", "seq", "version", "settings_version",
        "samples", "tokens", "loss", "value", "alloc_retries", "ooms", "segments", "processes", "workers",
        "throttle_reasons", "ecc_corrected", "ecc_uncorrected",
    }  # fmt: skip
    names = {c.name for table in TABLES.values() for c in table.columns if c.type != "text"}
    assert {name for name in names if not name.endswith(units)} == counts


def test_the_header_has_the_facts_about_the_run(tmp_path: Path) -> None:
    exported = export_run(an_exported_run(), tmp_path, ExportFormat.CSV)
    header = json.loads((exported.path / "run.json").read_text())
    assert (header["name"], header["state"], header["rows"]["steps"]) == ("cnn-1", "finished", 20)


def test_tensorboards_own_loader_reads_the_event_file(tmp_path: Path) -> None:
    folder = an_exported_run()
    exported = export_run(folder, tmp_path, ExportFormat.TENSORBOARD)
    events = EventAccumulator(str(exported.path))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {"loss", "step/step_ns", "step/allocated_bytes", "a/acc", "b/lr", "device/util_pct"} <= set(tags)
    assert "step/tokens" not in tags  # Never measured.
    losses = events.Scalars("loss")
    assert [event.step for event in losses] == list(range(1, 21))
    assert math.isnan(losses[-1].value)
    started_s = a_run().started_unix_ns / 1e9
    assert losses[4].wall_time == pytest.approx(started_s + a_step(5).t_ns / 1e9, abs=1e-3)
    rates = [(e.step, e.value) for e in events.Scalars("b/lr")]
    assert rates == [(1, 0.5), (2, 1.0), (3, 1.5), (4, -math.inf)]


@pytest.mark.parametrize("row", [StepRow, ScalarRow])
def test_pages_of_any_size_have_every_row_once(row: Any) -> None:
    with LogReader(an_exported_run().log) as reader:
        (whole,) = reader.tables.pages(row)
        for size in (1, 3, len(whole), len(whole) + 1):
            pages = list(reader.tables.pages(row, size))
            assert max(map(len, pages)) <= size
            assert [one for page in pages for one in page] == whole


def test_a_table_without_an_order_ends_the_export(tmp_path: Path) -> None:
    folder = an_exported_run()
    body = "SELECT 'x' AS rowid_, * FROM steps"
    edit(folder, f"CREATE TABLE other AS {body}", "DROP TABLE steps", "ALTER TABLE other RENAME TO steps")
    edit(folder, "ALTER TABLE steps RENAME COLUMN rowid_ TO rowid")
    with (
        LogReader(folder.log) as reader,
        pytest.raises(LogDamagedError, match="the table steps has no order"),
    ):
        list(reader.tables.pages(StepRow, 5))


def test_an_export_overwrites_nothing(tmp_path: Path) -> None:
    folder = an_exported_run()
    before = export_run(folder, tmp_path, ExportFormat.CSV).path
    with pytest.raises(UsageError, match="nothing is overwritten"):
        export_run(folder, tmp_path, ExportFormat.PARQUET)
    assert {path.suffix for path in before.iterdir()} == {".csv", ".json"}
    assert [path.name for path in tmp_path.iterdir()] == [folder.run_id]


def test_a_target_that_is_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, target = an_exported_run(), tmp_path / "file"
    target.touch()
    assert main(["export", folder.run_id, "-o", str(target)]) == 1
    assert (
        f"{target / folder.run_id} could not be written: not a directory. Nothing is left of it; choose"
        in (capsys.readouterr().err)
    )


@pytest.mark.long
@pytest.mark.parametrize("form", list(ExportFormat))
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, form: ExportFormat) -> None:
    folder = write("steady", a_home(), steps=2_000)

    def allow_few_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    ended = subprocess.run(
        [sys.executable, "-m", "harness", "export", folder.run_id, "--format", form, "-o", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=allow_few_bytes,
        check=False,
    )
    assert ended.returncode == 1
    assert "could not be written: file too large. Nothing is left of it; free some space" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_steps_and_a_live_one_are_exported_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, stalled = write("empty", a_home()), write("stalled", a_home(), steps=50)
    assert main(["export", empty.run_id, stalled.run_id, "-o", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    said = printed.err
    assert re.search(r": 2 events, 1 setting$", printed.out, re.MULTILINE)
    assert "demo: empty has no steps: " in said
    assert "demo: stalled is stalled: exported up to step 50." in said


def test_one_unreadable_run_does_not_keep_others_from_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, torn = an_exported_run(), write("empty", a_home())
    torn.log.write_bytes(b"not a log")
    assert main(["export", torn.run_id, whole.run_id, "-o", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "is not a Stepscope log" in printed.err
    assert "20 steps" in printed.out


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    run = an_exported_run().run_id
    assert main(["export", run, "-o", "-", "--table", "scalars", "--format", "jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == {"step": 1, "name": "a/acc", "t_ns": 1, "value": 0.5}
    assert lines[-1]["value"] == "-Infinity"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-o", "-", "--format", "parquet"], "-o - cannot print parquet; use --format csv or jsonl"),
        (["-o", "-", "--table", "steps", "--table", "events"], "-o - prints one table of one run"),
        (["-o", "x", "--table", "steps", "--format", "tensorboard"], "event files have no tables"),
    ],
)
def test_requests_that_cannot_be_met_are_refused(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", an_exported_run().run_id, *words]) == 2
    assert sentence in capsys.readouterr().err


def test_a_download_is_one_zip_file_of_all_tables() -> None:
    folder = an_exported_run()
    file = io.BytesIO()
    zip_runs([folder], ExportFormat.PARQUET, file)
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        steps_of_run = parquet.read_table(io.BytesIO(archive.read(f"{folder.run_id}/steps.parquet")))
    assert sorted(names) == sorted(
        f"{folder.run_id}/{name}" for name in ("run.json", *(f"{table}.parquet" for table in TABLES))
    )
    assert steps_of_run.num_rows == 20

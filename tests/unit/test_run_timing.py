"""The time of a range of steps, read from a log: short or long, with or without a count, old or new."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.analysis.timing.verdict import Bound, verdict
from harness.records.flops import FlopsRow
from harness.records.run import DeviceFacts, SettingsRow, StepRow
from harness.records.script import ScalarRow
from harness.settings import Settings
from harness.store import schema
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.supervisor.timing import RunTiming, read_timing
from tests.app.conftest import CPU, GPU
from tests.store_factories import a_run, write_log
from tests.timing_factories import a_timed_step, some_device_steps, some_steps

PARTS = (0.1, 3.0, 6.0, 0.9)
COUNTED = [FlopsRow(0, 1e9, "[]", 2, "{}", 1), FlopsRow(1, 1.3e9, "[]", 2, "{}", 1)]


def _version(version: int, step: int, **values: object) -> SettingsRow:
    settings = Settings(**values)  # type: ignore[arg-type]  # validated
    return SettingsRow(version, step, step, settings.model_dump_json(), json.dumps(values), None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def _read(
    path: Path,
    rows: Sequence[StepRow],
    device: DeviceFacts = CPU,
    history: Sequence[SettingsRow] = (),
    flops: Sequence[FlopsRow] = (),
) -> RunTiming:
    with LogAppender(path, a_run()) as appender:
        appender.append(rows, [*history, *flops])
    with LogReader(path) as reader:
        return read_timing(reader, rows[0].step, rows[-1].step, device, reader.settings_history(), ())


def test_a_short_range_is_read_whole(path: Path) -> None:
    result = _read(path, some_steps(500))
    assert (result.stride, result.timing.examined, result.versions) == (1, 500, 1)
    assert result.timing.between_steps_ns == 0
    assert not result.is_asynchronous


def test_the_phases_of_a_script_explain_the_time_outside_the_others(path: Path) -> None:
    rows = [a_timed_step(step, wait=0.1, forward=1.0, backward=1.0, rest=8.0) for step in range(1, 101)]
    own = [("phase/augment", 6.0), ("phase/log", 0.5), ("phase/tiny", 0.01), ("loss", 90.0)]
    with LogAppender(path, a_run()) as appender:
        scalars = [ScalarRow(row.step, name, row.t_ns, value, 0) for row in rows for name, value in own]
        appender.append(rows, scalars)
    with LogReader(path) as reader:
        timing = read_timing(reader, 1, 100, CPU, (), ()).timing
    assert timing.own_phases_ns == pytest.approx({"augment": 6e6, "log": 5e5, "tiny": 1e4})
    result = verdict(timing, is_asynchronous=False)
    assert result.bound is Bound.OUTSIDE
    assert timing.cpu is not None
    share = round(600 / (timing.cpu.step.mean / 1e6))
    assert result.why[0].startswith(f"The script measures by itself: augment {share} %")
    assert "tiny" not in result.why[0]
    assert result.next[0] == "Look into the script's own phase 'augment' first."


@pytest.mark.slow
def test_of_a_long_range_some_steps_are_read_and_the_slowest_is_found(path: Path) -> None:
    rows = some_steps(20_000)
    rows[12_344] = a_timed_step(12_345, wait=70.0)
    result = _read(path, rows)
    assert result.stride == 5
    assert result.timing.examined == 4_000
    assert (12_345 - 1) % result.stride, "the step must not be among those read"
    assert [slow.step for slow in result.slow] == [12_345]
    assert result.timing.between_steps_ns is None


def test_mfu_comes_from_count_settings_and_peak(path: Path) -> None:
    rows = [
        row._replace(samples=10, settings_version=1 + (row.step > 50))
        for row in some_device_steps(gap=0.0, parts=PARTS)
    ]
    history = [
        _version(1, 1, amp="bf16"),
        _version(2, 51, matmul_precision="high", activation_checkpointing=True),
    ]
    result = _read(path, rows, GPU, history, COUNTED)
    assert result.versions == 2
    assert result.timing.model_flops_per_s == pytest.approx(1e12)
    assert result.timing.executed_flops_per_s == pytest.approx(1.15e12)
    assert result.timing.mfu == pytest.approx(1e12 / ((989.5e12 + 494.5e12) / 2))
    assert result.arithmetic.math_type == "TF32"
    assert result.arithmetic.reason == ""


@pytest.mark.parametrize(
    ("device", "flops", "reason"),
    [
        (CPU, COUNTED, "There is no dense peak"),
        (GPU._replace(name="NVIDIA X1"), COUNTED, "dense FP32 peak of NVIDIA X1 is unknown"),
        (GPU, [], "were not counted"),
    ],
)
def test_without_mfu_there_is_a_reason(
    path: Path, device: DeviceFacts, flops: list[FlopsRow], reason: str
) -> None:
    rows = [row._replace(settings_version=1) for row in some_steps()]
    result = _read(path, rows, device, [_version(1, 1)], flops)
    assert result.timing.mfu is None
    assert (result.timing.model_flops_per_s is None) == (not flops)
    assert reason in result.arithmetic.reason


def test_what_was_not_counted_is_named(path: Path) -> None:
    rows = [row._replace(settings_version=1) for row in some_steps()]
    flops = [COUNTED[0]._replace(uncounted='["mine.kernel"]')]
    assert _read(path, rows, GPU, [_version(1, 1)], flops).arithmetic.uncounted == ["mine.kernel"]


def test_settings_that_are_not_understood_leave_mfu_out(path: Path) -> None:
    rows = [row._replace(settings_version=1) for row in some_steps()]
    result = _read(path, rows, GPU, [_version(1, 1)._replace(settings='{"warp": 9}')], COUNTED)
    assert result.timing.model_flops_per_s is None
    assert result.timing.cpu is not None


@pytest.mark.parametrize("version", range(1, len(schema.LOG_MIGRATIONS)))
def test_logs_of_every_older_version_are_read(path: Path, version: int) -> None:
    write_log(path, some_steps(30))
    connection = sqlite3.connect(path, isolation_level=None)
    if version < schema.FLOPS_SINCE:
        connection.execute("DROP TABLE flops")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with LogReader(path) as reader:
        assert reader.flops() == []
        result = read_timing(reader, 1, 30, CPU, reader.settings_history(), ())
    assert result.timing.examined == 30


def test_steps_apart_skips_what_is_not_there(path: Path) -> None:
    rows = [row for row in some_steps(100) if row.step != 21]
    write_log(path, rows)
    with LogReader(path) as reader:
        assert [row.step for row in reader.steps_apart(1, 100, 20)] == [1, 41, 61, 81]

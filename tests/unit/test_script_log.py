"""Scalars and settings of a person's own script are stored and read."""

import math
import sqlite3
from pathlib import Path

import pytest

from harness.errors import SettingError
from harness.records.floats import encode_float
from harness.records.script import DeclaredSetting, ScalarRow, SettingKind, UnavailableSettingRow
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.store.script_log import ScalarBucket, ScriptLog
from harness.supervisor.commands import checked_changes
from tests.store_factories import a_run, write_log

_DROPOUT = DeclaredSetting("dropout", SettingKind.FLOAT, 0.1, 0.0, 0.9, (), "Dropout")


def _scalar(step: int, name: str, value: float) -> ScalarRow:
    return ScalarRow(step, name, step * 1_000, *encode_float(value))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def test_scalars_are_read_by_name(path: Path) -> None:
    rows = [_scalar(step, name, step / 2) for step in range(1, 11) for name in ("loss", "accuracy")]
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=rows)
    with LogReader(path) as log:
        assert log.script.scalar_names() == ["accuracy", "loss"]
        assert log.script.scalar_extent("loss") == (1, 10)
        assert log.script.last_scalar("loss") == (10, 5.0)
        points = log.script.scalars("loss", 3, 5, 100)
        assert points == [ScalarBucket(s, s, 1, s / 2, s / 2, s / 2, 0) for s in (3, 4, 5)]
        assert log.script.scalars("recall", 1, 10, 100) == []
        assert log.script.last_scalar("recall") is None


@pytest.mark.slow
def test_a_spike_survives_in_a_bucket_of_many_steps(path: Path) -> None:
    rows = [_scalar(step, "loss", 1000.0 if step == 77_777 else 1.0) for step in range(1, 100_001)]
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=rows)
    with LogReader(path) as log:
        buckets = log.script.scalars("loss", 1, 100_000, 500)
    assert len(buckets) <= 501
    assert sum(bucket.values for bucket in buckets) == 100_000
    (highest,) = [bucket for bucket in buckets if bucket.high == 1000.0]
    assert highest.first_step <= 77_777 <= highest.last_step


def test_what_is_not_finite_is_counted_and_read_back(path: Path) -> None:
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=[_scalar(1, "a", math.nan), _scalar(2, "a", -math.inf), _scalar(3, "a", 2.0)])
    with LogReader(path) as log:
        assert log.script.scalars("a", 0, 3, 1) == [ScalarBucket(1, 3, 1, 2.0, 2.0, 2.0, 2)]
        assert log.script.scalars("a", 2, 2, 10) == [ScalarBucket(2, 2, 0, None, None, None, 1)]


def test_the_last_value_of_a_step_counts(path: Path) -> None:
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=[_scalar(1, "a", 1.0), _scalar(1, "a", 2.0)])
    with LogReader(path) as log:
        assert log.script.last_scalar("a") == (1, 2.0)


def test_declarations_survive_a_new_log(path: Path, tmp_path: Path) -> None:
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=[_DROPOUT.to_row(), UnavailableSettingRow("batch_size", "No loader.")])
        appender.reopen(tmp_path / "new.sqlite3")
    with LogReader(tmp_path / "new.sqlite3") as log:
        assert log.script.declared_settings() == [_DROPOUT]
        assert log.script.unavailable_settings() == {"batch_size": "No loader."}


@pytest.mark.parametrize("version", range(1, ScriptLog.since_version))
def test_older_logs_have_none_of_this(path: Path, version: int) -> None:
    write_log(path)
    connection = sqlite3.connect(path, isolation_level=None)
    for table in ("scalars", "declared_settings", "unavailable_settings"):
        connection.execute(f"DROP TABLE {table}")
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    with LogReader(path) as log:
        assert log.script.scalar_names() == []
        assert log.script.scalars("loss", 1, 10, 10) == []
        assert log.script.scalar_extent("loss") is None
        assert log.script.last_scalar("loss") is None
        assert log.script.declared_settings() == []
        assert log.script.unavailable_settings() == {}


@pytest.mark.parametrize(
    "declaration", ["{}", '{"kind": "float", "default": 2, "low": 0, "high": 1, "choices": [], "label": ""}']
)
def test_an_invalid_declaration_is_left_out(path: Path, declaration: str) -> None:
    with LogAppender(path, a_run()) as appender:
        appender.append(rows=[_DROPOUT.to_row()._replace(declaration=declaration)])
    with LogReader(path) as log:
        assert log.script.declared_settings() == []


@pytest.mark.parametrize(
    ("setting", "good", "bad", "domain"),
    [
        (_DROPOUT, "0.5", "0.95", "a number from 0 to 0.9"),
        (_DROPOUT, "0", "nan", "a number from 0 to 0.9"),
        (
            DeclaredSetting("n", SettingKind.INT, 1, 1, None, (), "n"),
            "3",
            "2.5",
            "a whole number of at least 1",
        ),
        (DeclaredSetting("f", SettingKind.BOOL, True, None, None, (), "f"), "off", "2", "true or false"),
        (DeclaredSetting("c", SettingKind.CHOICE, "a", None, None, ("a", "b"), "c"), "b", "z", "one of a, b"),
    ],
)
def test_a_text_becomes_a_value_or_an_error_that_names_the_values(
    setting: DeclaredSetting, good: str, bad: str, domain: str
) -> None:
    assert setting.check(setting.parse(good)) == setting.parse(good)
    with pytest.raises(ValueError, match=f"{setting.name} cannot be '{bad}'; it is {domain}"):
        setting.parse(bad)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dropot", "did you mean 'dropout'?"),
        ("batchsize", "did you mean 'batch_size'?"),
        ("zzz", "the script declares dropout so far; `stepscope settings` lists all others."),
    ],
)
def test_a_setting_that_does_not_exist_is_compared_with_those_of_the_script(name: str, hint: str) -> None:
    with pytest.raises(SettingError) as raised:
        checked_changes({name: 1}, lambda: [_DROPOUT])
    assert str(raised.value) == f"There is no setting {name!r}; {hint}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("batchsize", "did you mean 'batch_size'? The script has declared none of its own yet."),
        ("zzz", "the script has declared none of its own yet; `stepscope settings` lists all others."),
    ],
)
def test_a_setting_that_the_script_has_not_declared_yet_is_said_to_be_that(name: str, hint: str) -> None:
    with pytest.raises(SettingError) as raised:
        checked_changes({name: 1}, list)
    assert str(raised.value) == f"There is no setting {name!r}; {hint}"

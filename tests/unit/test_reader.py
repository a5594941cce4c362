"""The reader on bad days: each damaged or strange file has its own error and a sentence that names it."""

import contextlib
import json
import os
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.errors import (
    LogDamagedError,
    LogError,
    LogForeignError,
    LogMissingError,
    LogNewerError,
)
from harness.records.run import SettingsRow
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.store.schema import LOG_MIGRATIONS
from tests.store_factories import a_run, steps, write_log

_NOBODY = 65_534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.sqlite3", steps(1, 2_000))


def _read_all(path: Path) -> None:
    with LogReader(path) as reader:
        reader.run()
        reader.steps(0, 10_000)
        reader.series(0, 10_000, 50)
        reader.check()


def test_a_missing_log_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(LogMissingError, match=r"no log at .*nothing\.sqlite3"):
        LogReader(tmp_path / "nothing.sqlite3")


def test_a_log_that_was_only_just_created_is_missing(tmp_path: Path) -> None:
    empty = tmp_path / "log.sqlite3"
    empty.touch()
    with pytest.raises(LogMissingError, match="still empty"):
        LogReader(empty)


def test_a_file_without_tables_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    with pytest.raises(LogMissingError, match="still empty"):
        LogReader(path)
    connection.close()


def test_a_text_file_is_foreign(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    path.write_text("step,loss\n1,0.5\n" * 100)
    with pytest.raises(LogForeignError, match="not an SQLite file"):
        LogReader(path)


def test_another_programs_database_is_foreign(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE steps (x INTEGER)")
    connection.close()
    with pytest.raises(LogForeignError, match="not a Stepscope log"):
        LogReader(path)


def test_a_log_of_a_newer_version_asks_for_an_update(path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA user_version = {len(LOG_MIGRATIONS) + 1}")
    connection.close()
    newer = rf"newer Stepscope .*log version {len(LOG_MIGRATIONS) + 1}.*update"
    with pytest.raises(LogNewerError, match=newer):
        LogReader(path)


@pytest.mark.slow
@pytest.mark.parametrize("retained", [16, 60, 100, 4_000, 4_096, 8_192, 0.5, 0.99])
def test_a_truncated_log_is_damaged(path: Path, retained: float) -> None:
    size = path.stat().st_size
    os.truncate(path, retained if isinstance(retained, int) else int(size * retained))
    with pytest.raises(LogDamagedError, match=r"log\.sqlite3 is damaged .*copy the run's folder again"):
        _read_all(path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_corrupt_log_is_damaged_and_never_a_crash(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    content = bytearray(path.read_bytes())
    for page in chance.sample(range(1, len(content) // 4096), 12):
        content[page * 4096 : page * 4096 + 64] = chance.randbytes(64)
    path.write_bytes(content)
    with pytest.raises(LogDamagedError, match=r"log\.sqlite3 is damaged"):
        _read_all(path)


def test_a_log_deleted_under_the_reader_is_no_crash(path: Path) -> None:
    with LogReader(path) as reader:
        path.unlink()
        with contextlib.suppress(LogError):  # What is cached may still be read; anything else is a LogError.
            reader.run()


def test_a_folder_in_the_logs_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "log.sqlite3").mkdir()
    with pytest.raises(LogError, match=r"log\.sqlite3 cannot be read"):
        LogReader(tmp_path / "log.sqlite3")


def test_a_live_log_can_be_copied_with_its_journal(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with LogAppender(tmp_path / "run" / "log.sqlite3", a_run()) as appender:
        appender.append(steps(1, 700))
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
    with LogReader(tmp_path / "copy" / "log.sqlite3") as reader:
        reader.check()
        assert reader.extent() == (1, 700, 700)


def test_a_live_log_copied_without_its_journal_still_opens(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        appender.append(steps(1, 100))
        connection = appender._connection
        assert connection is not None
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        appender.append(steps(101, 200))
        shutil.copy(tmp_path / "log.sqlite3", tmp_path / "copy" / "log.sqlite3")
    with LogReader(tmp_path / "copy" / "log.sqlite3") as reader:
        reader.check()
        assert reader.extent() == (1, 100, 100)


def test_a_journal_cut_short_loses_only_its_end(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        for first in range(1, 1_001, 100):
            appender.append(steps(first, first + 99))
        for name in ("log.sqlite3", "log.sqlite3-wal"):
            shutil.copy(tmp_path / name, tmp_path / "copy" / name)
    wal = tmp_path / "copy" / "log.sqlite3-wal"
    os.truncate(wal, wal.stat().st_size * 2 // 3)
    with LogReader(tmp_path / "copy" / "log.sqlite3") as reader:
        reader.check()
        last = reader.extent().last
    assert last is not None
    assert last % 100 == 0
    assert 100 <= last < 1_000


def _as_nobody(action: Callable[[], None]) -> None:
    """Run `action` in a child without privileges, whom permissions bind; its failure fails the test."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if os.getuid() == 0:
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
            action()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.fixture
def anyone() -> Iterator[Path]:
    """An empty folder that everybody can look into."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)
        Path(name).chmod(0o755)


def _lock(folder: Path) -> None:
    """From now on nobody may write to the folder."""
    for entry in folder.iterdir():
        entry.chmod(0o444)
    folder.chmod(0o555)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_log_in_a_folder_that_cannot_be_written_is_read(anyone: Path) -> None:
    path = write_log(anyone / "log.sqlite3", steps(1, 2_000))
    _lock(anyone)

    def read() -> None:
        assert not os.access(anyone, os.W_OK)
        with LogReader(path) as reader:
            assert reader.extent() == (1, 2_000, 2_000)

    _as_nobody(read)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("with_memory", [True, False])
def test_a_log_with_a_journal_in_a_folder_that_cannot_be_written_is_read(
    tmp_path: Path, anyone: Path, with_memory: bool
) -> None:
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        appender.append(steps(1, 300))
        for name in ("log.sqlite3", "log.sqlite3-wal", *(["log.sqlite3-shm"] if with_memory else [])):
            shutil.copy(tmp_path / name, anyone / name)
    _lock(anyone)

    def read() -> None:
        with LogReader(anyone / "log.sqlite3") as reader:
            assert reader.extent() == (1, 300, 300)

    _as_nobody(read)


def _leave_half_a_change(path: Path) -> None:
    """Change the log as a writer would that is killed in the middle, with its journal left behind."""
    child = os.fork()
    if child == 0:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA cache_size = 5")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE steps SET loss = 9.0")
        os._exit(0)
    os.waitpid(child, 0)
    assert path.with_name(path.name + "-journal").stat().st_size > 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_killed_writer_left_half_done_is_rolled_back(path: Path) -> None:
    _leave_half_a_change(path)
    with LogReader(path) as reader:
        reader.check()
        assert reader.steps(1, 2_000) == steps(1, 2_000)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_half_a_change_in_a_folder_that_cannot_be_written_is_rolled_back_in_a_copy(anyone: Path) -> None:
    path = write_log(anyone / "log.sqlite3", steps(1, 2_000))
    _leave_half_a_change(path)
    _lock(anyone)

    def read() -> None:
        with LogReader(path) as reader:
            assert reader.steps(1, 2_000) == steps(1, 2_000)

    _as_nobody(read)
    assert path.with_name(path.name + "-journal").exists()


def test_a_series_names_the_column_it_does_not_keep(path: Path) -> None:
    with LogReader(path) as reader, pytest.raises(ValueError, match="'flags' is not a plotted column"):
        reader.series(1, 10, columns=["flags"])


def test_the_mean_of_a_column_nobody_measured_is_missing(path: Path) -> None:
    with LogReader(path) as reader:
        series = reader.series(1, 2_000, 10)
    assert series.mean("device_step_ns") == [None] * len(series.rows)
    assert all(mean is not None and 2_000_000 <= mean < 2_000_007 for mean in series.mean("step_ns"))
    assert sum(series.column("rows")) == 2_000


def test_a_closed_reader_says_so(path: Path) -> None:
    reader = LogReader(path)
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.stamp()


def test_settings_recorded_under_an_earlier_name_have_the_name_of_today(tmp_path: Path) -> None:
    earlier, today = '{"measure_own_cost": false}', '{"measure_overhead": false}'
    folder = RunFolder(tmp_path / "20260102-030405-abcd")
    folder.path.mkdir()
    request = {"name": "cnn-1", "created_unix_ns": 1, "settings": json.loads(earlier)}
    (folder.path / "request.json").write_text(json.dumps(request))
    with LogAppender(folder.log, a_run()._replace(settings=earlier)) as log:
        log.append((), [SettingsRow(1, 1, 0, earlier, earlier, None)])
    with LogReader(folder.log) as reader:
        (row,) = reader.settings_history()
        assert (reader.run().settings, row.settings, row.changed) == (today, today, today)
    assert folder.request().settings_json == today


def test_recent_steps_begin_with_the_newest_reading_of_memory_where_they_have_none(tmp_path: Path) -> None:
    """Reading is slow on a busy machine, and short steps then share few readings."""
    unread = [row._replace(allocated_bytes=None) for row in steps(301, 5_000)]
    path = write_log(tmp_path / "log.sqlite3", [*steps(1, 300), *unread])
    with LogReader(path) as reader:
        assert [row.step for row in reader.recent_steps(3)] == [4_998, 4_999, 5_000]
        assert reader.recent_steps(6_000) == reader.last_steps(6_000)
    near = write_log(tmp_path / "near.sqlite3", [*steps(1, 300), *unread[:500]])
    with LogReader(near) as reader:
        recent = reader.recent_steps(3)
    assert [row.step for row in recent] == [300, 798, 799, 800]
    assert recent[0].allocated_bytes is not None
    with LogReader(write_log(tmp_path / "read.sqlite3", steps(1, 300))) as reader:
        assert [row.step for row in reader.recent_steps(3)] == [298, 299, 300]

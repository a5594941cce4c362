"""A copy of a log, kept up to date in transfers of any size, equals the log."""

import sqlite3
import time
from pathlib import Path

import pytest

from harness.demo.scenarios import SCENARIOS
from harness.demo.writing import write
from harness.errors import HomeFullError, LogNewerError
from harness.records.run import RunState
from harness.records.script import ScalarRow
from harness.store.appender import LogAppender
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.store.replica import LogReplica, NewRows, TableRows, read_rows
from tests.store_factories import a_device_sample, a_run, a_step, an_event, steps


def content(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row of every table, sorted."""
    connection = sqlite3.connect(path)
    try:
        names = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        return {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
    finally:
        connection.close()


def transfer(source: Path, replica: LogReplica, most_rows: int) -> int:
    """Transfer until everything has arrived; return the number of transfers."""
    transfers = 0
    while True:
        new = read_rows(source, replica.marks, most_rows)
        assert new is not None
        replica.apply(new)
        transfers += 1
        if new.is_complete:
            return transfers


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_copy_in_small_pieces_equals_the_log(tmp_path: Path, scenario: str) -> None:
    source = write(scenario, Home(tmp_path / "home"), 600).log
    with LogReplica(tmp_path / "copy.sqlite3") as replica:
        assert transfer(source, replica, 97) > 2
    assert content(tmp_path / "copy.sqlite3") == content(source)


def test_rows_that_are_written_during_transfers_arrive_once(tmp_path: Path) -> None:
    source = tmp_path / "log.sqlite3"
    with LogAppender(source, a_run()) as log, LogReplica(tmp_path / "copy.sqlite3") as replica:
        for first in range(1, 400, 37):
            log.append(steps(first, first + 36), [an_event(), a_device_sample(first // 37, first)])
            transfer(source, replica, 20)
            transfer(source, replica, 20)
        assert replica.last_step == 407
    assert content(tmp_path / "copy.sqlite3") == content(source)


def test_scalars_arrive_in_whatever_order_a_script_logs_them(tmp_path: Path) -> None:
    source = tmp_path / "log.sqlite3"
    transfers = [
        [ScalarRow(100, "loss", 10, 1.0, 0)],
        [ScalarRow(3, "of an epoch", 20, 2.0, 0)],
        [ScalarRow(100, "loss", 30, 3.0, 0)],  # Logged once more.
        [ScalarRow(99, "of a GPU", 8, 4.0, 0), ScalarRow(98, "of a GPU", 6, 4.0, 0)],
    ]
    with LogAppender(source, a_run()) as log, LogReplica(tmp_path / "copy.sqlite3") as replica:
        for rows in transfers:
            log.append(rows=rows)
            transfer(source, replica, 20)
            assert content(tmp_path / "copy.sqlite3") == content(source)
        new = read_rows(source, replica.marks)
    assert new is not None
    assert "scalars" not in new.tables


def test_a_replica_that_is_opened_again_continues_where_it_was(tmp_path: Path) -> None:
    source, copy = tmp_path / "log.sqlite3", tmp_path / "copy.sqlite3"
    with LogAppender(source, a_run()) as log:
        log.append(steps(1, 100))
        with LogReplica(copy) as replica:
            transfer(source, replica, 1_000)
        log.append(steps(101, 250), [a_device_sample(seq, 101) for seq in range(20)])
        with LogReplica(copy) as replica:
            assert replica.last_step == 100
            new = read_rows(source, replica.marks)
            assert new is not None
            assert len(new.tables["steps"].rows) == 150
            replica.apply(new)
            replica.apply(new)  # As after an answer that was lost.
    assert content(copy) == content(source)


def test_a_log_that_is_not_there_yet_has_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path / "log.sqlite3", {}) is None
    with LogReplica(tmp_path / "copy.sqlite3") as replica:
        assert (replica.marks, replica.last_step) == ({}, 0)
        assert not replica.end(RunState.LOST, "gone", 1)
    assert not (tmp_path / "copy.sqlite3").exists()


def test_an_outcome_is_recorded_only_where_the_run_recorded_none(tmp_path: Path) -> None:
    source, copy = tmp_path / "log.sqlite3", tmp_path / "copy.sqlite3"
    with LogAppender(source, a_run()) as log, LogReplica(copy) as replica:
        log.append([a_step(1)])
        transfer(source, replica, 100)
        assert replica.end(RunState.LOST, "The node is gone.", time.time_ns())
        assert not replica.end(RunState.KILLED, "No.", time.time_ns())
    with LogReader(copy) as reader:
        assert (reader.run().state, reader.run().state_message) == ("lost", "The node is gone.")


def test_rows_of_another_version_are_refused(tmp_path: Path) -> None:
    with LogReplica(tmp_path / "copy.sqlite3") as replica, pytest.raises(LogNewerError, match="version 99"):
        replica.apply(NewRows(99, {"steps": TableRows(("step",), ((1,),))}, True))


@pytest.mark.slow
def test_a_copy_that_another_process_has_locked_may_be_written_later(tmp_path: Path) -> None:
    source, copy = tmp_path / "log.sqlite3", tmp_path / "copy.sqlite3"
    with LogAppender(source, a_run()) as log, LogReplica(copy) as replica:
        log.append(steps(1, 10))
        transfer(source, replica, 100)
        assert replica._connection is not None
        replica._connection.execute("PRAGMA busy_timeout = 50")
        log.append(steps(11, 20))
        other = sqlite3.connect(copy, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(HomeFullError, match="locked"):
            transfer(source, replica, 100)
        other.close()
        transfer(source, replica, 100)
    assert content(copy) == content(source)


def test_a_log_that_is_being_created_has_no_rows_yet(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "log.sqlite3", isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    assert read_rows(tmp_path / "log.sqlite3", {}) is None
    connection.close()

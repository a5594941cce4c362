"""The file of the queue: order, states, and files that are something else."""

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.errors import LogDamagedError, LogForeignError, LogNewerError, UsageError
from harness.records.queue import PlacementRow, QueueRequest, QueueState
from harness.store.queue_log import QueueLog


@pytest.fixture
def log(tmp_path: Path) -> QueueLog:
    return QueueLog(tmp_path / "queue.sqlite3")


def a_request(name: str, added_unix_ns: int = 1) -> QueueRequest:
    return QueueRequest(f"id of {name}", added_unix_ns, name, "{}", None, "auto", 0)


def order(log: QueueLog) -> list[tuple[int, str | None]]:
    return [(row.position, row.name) for row in log.entries()]


def test_a_queue_without_a_file_is_empty_and_makes_none(log: QueueLog, tmp_path: Path) -> None:
    assert (log.entries(), log.placements(), log.is_paused()) == ([], [], False)
    assert list(tmp_path.iterdir()) == []


def test_entries_are_in_the_order_of_adding_whatever_the_clock_said(log: QueueLog) -> None:
    for name, added_unix_ns in (("a", 2**62), ("b", 0), ("c", 5)):
        log.add(a_request(name, added_unix_ns))
    assert order(log) == [(1, "a"), (2, "b"), (3, "c")]


def test_a_request_that_is_sent_twice_is_one_entry(log: QueueLog) -> None:
    assert log.add(a_request("a")) == log.add(a_request("a")) == 1
    assert order(log) == [(1, "a")]


def test_entries_that_are_added_at_once_by_many_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite3"
    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(lambda at: QueueLog(path).add(a_request(str(at))), range(40)))
    assert len(set(ids)) == 40
    assert [row.position for row in QueueLog(path).entries()] == list(range(1, 41))


def test_an_entry_moves_and_the_others_close_up(log: QueueLog) -> None:
    ids = [log.add(a_request(name)) for name in "abcd"]
    log.move(ids[3], 1)
    assert [name for _, name in order(log)] == ["d", "a", "b", "c"]
    log.move(ids[0], 99)
    assert [name for _, name in order(log)] == ["d", "b", "c", "a"]
    log.remove(ids[1])
    assert order(log) == [(1, "d"), (2, "c"), (3, "a")]


def test_an_entry_that_is_not_there_is_named(log: QueueLog) -> None:
    for act in (log.remove, lambda entry: log.move(entry, 1), log.force):
        with pytest.raises(UsageError, match="no entry 7"):
            act(7)


def test_an_entry_that_is_starting_cannot_be_taken_out(log: QueueLog) -> None:
    entry_id = log.add(a_request("a"))
    assert log.begin_start(entry_id, "cpu")
    with pytest.raises(UsageError, match="starting on cpu"):
        log.remove(entry_id)
    log.cancel_start(entry_id)
    log.remove(entry_id)
    assert log.entries() == []


def test_nothing_begins_to_start_that_is_paused_blocked_or_gone(log: QueueLog) -> None:
    entry_id = log.add(a_request("a"))
    for state in (QueueState.PAUSED, QueueState.BLOCKED):
        log.set_state(entry_id, state)
        assert not log.begin_start(entry_id, "cpu")
    log.set_state(entry_id, QueueState.WAITING)
    log.pause(is_paused=True)
    assert not log.begin_start(entry_id, "cpu")
    log.pause(is_paused=False)
    assert log.begin_start(entry_id, "cpu")
    assert not log.begin_start(99, "cpu")


def test_a_start_replaces_the_entry_by_the_run_and_its_device(log: QueueLog) -> None:
    ids = [log.add(a_request(name)) for name in "ab"]
    log.begin_start(ids[0], "GPU-1")
    log.end_start(ids[0], "run-1", "GPU-1")
    assert order(log) == [(1, "b")]
    assert log.placements() == [PlacementRow("run-1", "GPU-1")]
    log.forget_placements(["run-1"])
    assert log.placements() == []


def test_a_reason_is_for_entries_that_wait(log: QueueLog) -> None:
    ids = [log.add(a_request(name)) for name in "ab"]
    log.set_state(ids[1], QueueState.BLOCKED, "no model")
    log.explain({ids[0]: "waits for cpu", ids[1]: "waits for cpu", 9: "gone"})
    assert [row.reason for row in log.entries()] == ["waits for cpu", "no model"]


def test_the_file_is_private(log: QueueLog, tmp_path: Path) -> None:
    log.add(a_request("a"))
    assert (tmp_path / "queue.sqlite3").stat().st_mode & 0o077 == 0


def test_a_file_that_is_something_else_is_named_and_left_alone(log: QueueLog, tmp_path: Path) -> None:
    path = tmp_path / "queue.sqlite3"
    path.write_bytes(b"not a database, just a text" * 9)
    with pytest.raises(LogForeignError):
        log.entries()
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    with pytest.raises(LogForeignError, match="not a queue"):
        log.add(a_request("a"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Exception, match="named pipe"):
        log.entries()


def test_a_newer_queue_is_refused(log: QueueLog, tmp_path: Path) -> None:
    log.add(a_request("a"))
    with sqlite3.connect(tmp_path / "queue.sqlite3") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(LogNewerError):
        log.entries()


def test_a_row_with_impossible_values_is_damage(log: QueueLog, tmp_path: Path) -> None:
    log.add(a_request("a"))
    with sqlite3.connect(tmp_path / "queue.sqlite3") as connection:
        connection.execute("UPDATE entries SET state = 'dancing'")
    connection.close()
    with pytest.raises(LogDamagedError, match="dancing"):
        log.entries()

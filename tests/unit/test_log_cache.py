"""The cached facts of logs."""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from harness.records.run import RunState
from harness.store.folder import RunFolder
from harness.store.writer import LogWriter
from harness.supervisor.logs import LogCache
from tests.store_factories import a_run


def a_log(path: Path) -> RunFolder:
    """The log of a run that goes on, in one file, with the time of a minute ago."""
    folder = RunFolder(path)
    with LogWriter(folder.log, a_run("id", "mine"), list, time.monotonic_ns) as log:
        log.finish(RunState.STOPPED, "Stopped.", 1)
    change_without_a_trace(folder, RunState.RUNNING)
    age(folder, 60)
    return folder


def age(folder: RunFolder, age_s: float) -> None:
    os.utime(folder.log, ns=(0, time.time_ns() - int(age_s * 1e9)))


def change_without_a_trace(folder: RunFolder, state: RunState) -> None:
    """Change the state in place: inode, size and time stay, as before a commit can be seen."""
    before = os.stat(folder.log)
    with closing(sqlite3.connect(folder.log)) as connection, connection:
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("UPDATE run SET state = ?", (state.value,))
    os.utime(folder.log, ns=(0, before.st_mtime_ns))
    assert os.stat(folder.log).st_size == before.st_size


def state(cache: LogCache, folder: RunFolder) -> str | None:
    run = cache.read(folder).run
    return None if run is None else run.state


def test_a_log_that_has_not_changed_for_a_while_is_read_once(tmp_path: Path) -> None:
    cache, folder = LogCache(), a_log(tmp_path)
    assert state(cache, folder) == RunState.RUNNING
    change_without_a_trace(folder, RunState.STOPPED)
    assert state(cache, folder) == RunState.RUNNING


def test_a_log_that_changed_a_moment_before_it_was_read_is_read_again(tmp_path: Path) -> None:
    cache, folder = LogCache(), a_log(tmp_path)
    age(folder, 0)
    assert state(cache, folder) == RunState.RUNNING
    change_without_a_trace(folder, RunState.STOPPED)
    assert state(cache, folder) == RunState.STOPPED


def test_the_log_of_an_ended_run_is_read_once(tmp_path: Path) -> None:
    cache, folder = LogCache(), a_log(tmp_path)
    change_without_a_trace(folder, RunState.STOPPED)
    age(folder, 0)
    assert state(cache, folder) == RunState.STOPPED
    change_without_a_trace(folder, RunState.RUNNING)
    assert state(cache, folder) == RunState.STOPPED

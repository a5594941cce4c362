"""Appends batches of rows to a log, each with its rollups in one transaction.

The only module that writes a log. `harness.store.writer` adds a thread and a bounded buffer; the demo appends
directly.
"""

import ctypes
import os
import sqlite3
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from itertools import chain, groupby
from pathlib import Path

from harness.closing import Closing
from harness.errors import HomeError
from harness.files.regular import create_private
from harness.records.run import DeviceSampleRow, EventRow, ModelSizeRow, RunRow, StepRow
from harness.store.inserts import INSERTS, RUN_INSERT, Row, StateChange, insert_of
from harness.store.mounts import refuse_network
from harness.store.rollups import LEVELS, SIZES, device_rollup_sql
from harness.store.run_record import RunRecord
from harness.store.schema import LOG_APPLICATION_ID, LOG_MIGRATIONS, migrate
from harness.store.step_sql import ALL_PRESENT, CHUNKS, AbsentColumns, StepSql

# Pages of a backup per step: eight megabytes, some tens of milliseconds.
_PAGES_AT_ONCE = 2_000

_STATE = "UPDATE run SET state = ?, state_message = ?, ended_unix_ns = ?"
_DEVICE_ROLLUPS = tuple(device_rollup_sql(level) for level in range(1, LEVELS + 1))


class LogAppender(Closing):
    """The one writing connection to a log, for one thread at a time. A context manager.

    Attributes:
        record: the rows with which a new log of the same run begins.
        steps_written: the number of appended steps, over all files.
    """

    def __init__(self, path: Path, run: RunRow, *, may_exist: bool = False) -> None:
        """Create the log with its run row, durably. If it `may_exist`, a log that this run has begun before,
        without steps, is continued.

        Raises HomeError when there can be no log at `path`, or the log already has a run.
        """
        refuse_network(path.parent)
        self.record = RunRecord(run)
        self.steps_written = 0
        self._steps_done = [0] * (LEVELS + 1)
        self._device_done: dict[str, list[int]] = {}
        self._absent = AbsentColumns()
        try:
            with ExitStack() as opened:
                connection = open_writing(path)
                opened.callback(connection.close)
                self._connection: sqlite3.Connection | None = connection
                self._begin(durable=True)
                if not connection.execute("SELECT count(*) FROM run").fetchone()[0]:
                    connection.execute(RUN_INSERT, run)
                elif not may_exist:
                    raise HomeError(f"{path} already contains a run; each run needs a new folder.")
                self._commit(durable=True)
                opened.pop_all()
        except sqlite3.Error as error:
            raise HomeError(f"The log {path} could not be created: {error}.") from None
        _OPEN.add(self)

    def append(
        self,
        steps: Sequence[StepRow] = (),
        rows: Iterable[Row] = (),
        states: Iterable[StateChange] = (),
        durable: bool = False,
    ) -> None:
        """Append everything in one transaction, or nothing if it raises sqlite3.Error.

        `steps` increase strictly, also across calls. `durable` waits until the data is on disk.
        """
        connection = self._begin(durable)
        rows, states = list(rows), list(states)
        try:
            sql = self._absent.sql_for(steps)
            start = 0
            for rows_at_once in CHUNKS:
                while len(steps) - start >= rows_at_once:
                    chunk = steps[start : start + rows_at_once]
                    connection.execute(sql.inserts[rows_at_once], sql.values(chunk))
                    start += rows_at_once
            _insert(connection, rows)
            devices = {row.device: row.seq for row in rows if type(row) is DeviceSampleRow}
            for change in states:
                connection.execute(_STATE, (change.state, change.message, change.ended_unix_ns))
                if change.event is not None:
                    connection.execute(INSERTS[EventRow], change.event)
            steps_done = self._roll_up_steps(connection, sql, steps[-1].step) if steps else self._steps_done
            device_done = {d: self._roll_up_device(connection, d, seq) for d, seq in devices.items()}
        except BaseException:
            self._rollback()
            raise
        self._commit(durable)
        self._steps_done = steps_done
        self._device_done |= device_done
        self.steps_written += len(steps)
        self.record.add(rows, states)

    @property
    def is_open(self) -> bool:
        """True until `close` or `discard`."""
        return self._connection is not None

    def reopen(self, path: Path) -> None:
        """Continue with the log at `path`: the same one renamed, or a new one.

        Raises sqlite3.Error, or HomeError when there can be no log at `path`.
        """
        self.discard()  # First, or SQLite shares the old name of its index with the new connection.
        self._connection = connection = open_writing(path)
        _OPEN.add(self)
        if not connection.execute("SELECT count(*) FROM run").fetchone()[0]:
            self.record.write_to(connection)
        self._absent = AbsentColumns(ALL_PRESENT)  # The columns of its steps are unknown.
        last = connection.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0]
        self._steps_done = [last // size for size in SIZES]
        samples = connection.execute("SELECT device, max(seq) FROM device_samples GROUP BY device").fetchall()
        self._device_done = {device: [seq // size for size in SIZES] for device, seq in samples}

    def discard(self) -> None:
        """Close a log whose file was renamed or deleted: SQLite detects that and leaves the file and its
        write-ahead log unchanged. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _OPEN.discard(self)
            connection.close()

    def back_up(self, path: Path, is_over: Callable[[], bool]) -> bool:
        """Copy the log to `path`, overwriting it, until `is_over`; return whether the copy is complete.

        Raises sqlite3.Error.
        """
        if self._connection is None:
            return False
        target = sqlite3.connect(path, isolation_level=None)

        def stop_in_time(_status: int, _remaining: int, _total: int) -> None:
            if is_over():
                raise TimeoutError

        try:
            self._connection.backup(target, pages=_PAGES_AT_ONCE, progress=stop_in_time)
        except TimeoutError:
            return False
        finally:
            target.close()
        return True

    def _roll_up_steps(self, connection: sqlite3.Connection, sql: StepSql, last: int) -> list[int]:
        done = list(self._steps_done)
        for level in range(1, LEVELS + 1):
            end = last // SIZES[level]
            if end <= done[level]:
                break
            connection.execute(sql.rollups[level - 1], {"first": done[level], "end": end})
            done[level] = end
        return done

    def _roll_up_device(self, connection: sqlite3.Connection, device: str, last: int) -> list[int]:
        done = list(self._device_done.get(device, [0] * (LEVELS + 1)))
        for level in range(1, LEVELS + 1):
            end = last // SIZES[level]
            if end <= done[level]:
                break
            bounds = {"device": device, "first": done[level], "end": end}
            connection.execute(_DEVICE_ROLLUPS[level - 1], bounds)
            done[level] = end
        return done

    def _begin(self, durable: bool) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.OperationalError("the log is not open")
        if durable:
            self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def _commit(self, durable: bool) -> None:
        assert self._connection is not None
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self._rollback()
            raise
        if durable:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def _rollback(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the log; without readers at that moment it becomes a single file. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        _OPEN.discard(self)
        try:
            connection.execute("PRAGMA busy_timeout = 200")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.DatabaseError:
            pass  # With a reader, a full disk or a damaged log it stays in WAL mode.
        finally:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: drop the connection without closing it, which would affect the parent's log."""
        connection, self._connection = self._connection, None
        if connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _insert(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Insert the rows in their order; as many of one kind as there are by one statement, as with steps."""
    for kind, of_kind in groupby(rows, type):
        if kind is ModelSizeRow:
            connection.executemany(INSERTS[kind], of_kind)
            continue
        values, start = list(of_kind), 0
        for rows_at_once in CHUNKS:
            while len(values) - start >= rows_at_once:
                chunk = values[start : start + rows_at_once]
                connection.execute(insert_of(kind, rows_at_once), tuple(chain.from_iterable(chunk)))
                start += rows_at_once


_OPEN: "weakref.WeakSet[LogAppender]" = weakref.WeakSet()


def _abandon_all() -> None:
    for appender in list(_OPEN):
        appender.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def open_writing(path: Path) -> sqlite3.Connection:
    """Open the log at `path` for writing, and create it if it is missing.

    Raises sqlite3.Error, or HomeError when there can be no write-ahead log.
    """
    try:
        create_private(path)
    except OSError as error:
        raise HomeError(f"The log {path} could not be created: {error.strerror or error}.") from None
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        connection.execute("PRAGMA mmap_size = 0")
        connection.execute("PRAGMA trusted_schema = OFF")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise HomeError(f"{path.parent} does not support a write-ahead log (journal mode {mode!r}).")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 8388608")
        # SQLite's default of 2 MB would fill over 20,000 steps and look like a leak on the CPU.
        connection.execute("PRAGMA cache_size = -256")
        migrate(connection, LOG_MIGRATIONS, LOG_APPLICATION_ID)
    except BaseException:
        connection.close()
        raise
    return connection

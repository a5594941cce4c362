"""A copy of a log that another machine writes, kept up to date row by row.

`read_rows` reads new rows on the machine of the training, and `LogReplica` writes them here, as the only
writer of this copy. Marks, which the copy reads from its own rows, say what is new, so that a transfer can be
repeated.
"""

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.closing import Closing
from harness.errors import HomeFullError, LogError, LogMissingError, LogNewerError
from harness.records.run import RunState
from harness.store.appender import open_writing
from harness.store.error_causes import Blame, blame, reason
from harness.store.opening import open_reading
from harness.store.rollups import LEVELS, SIZES, device_rollup_sql, step_rollup_sql
from harness.store.schema import LOG_MIGRATIONS

# Rows of one table in one transfer; about a megabyte of steps.
_MOST_ROWS = 5_000
# A scalar that a GPU computes is written once it has arrived, with the time at which the script logged it.
_LATE_SCALARS_NS = 10_000_000_000


class _GrowingColumn(NamedTuple):
    """A column that grows from row to row. Rows of its last value may follow later, and so may rows of values
    that are lower by up to `late`."""

    name: str
    late: int = 0


# Tables with a key of several columns. A script may log a scalar at any step, but not at an earlier time.
_GROWING = {
    "allocations": _GrowingColumn("snapshot_id"),
    "module_memory": _GrowingColumn("snapshot_id"),
    "device_processes": _GrowingColumn("seq"),
    "worker_samples": _GrowingColumn("seq"),
    "profile_ops": _GrowingColumn("profile_id"),
    "profile_modules": _GrowingColumn("profile_id"),
    "profile_stacks": _GrowingColumn("profile_id"),
    "scalars": _GrowingColumn("t_ns", _LATE_SCALARS_NS),
    "measurement_blocks": _GrowingColumn("measurement"),
}
# Small tables that change: read whole.
_WHOLE = frozenset({"run", "declared_settings", "unavailable_settings"})
# Computed from the rows on arrival.
_ROLLUPS = frozenset({"step_rollups", "device_rollups"})
_LOWEST = -1


class Mark(NamedTuple):
    """The last row of a table: its rowid, or the highest value of its growing column, and the number of rows
    with this value, or with one that is lower by at most `_GrowingColumn.late`."""

    highest: int = _LOWEST
    rows: int = 0


Marks = Mapping[str, Mark]


class TableRows(NamedTuple):
    """New rows of one table; of a table with rowids each row begins with its own."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


class NewRows(NamedTuple):
    """The rows after some marks. `is_complete` is false when there are more."""

    version: int
    tables: Mapping[str, TableRows]
    is_complete: bool


def read_rows(path: Path, marks: Marks, most_rows: int = _MOST_ROWS) -> NewRows | None:
    """Return the rows of the log at `path` after `marks`; None while there is no log. Raises LogError."""
    try:
        opened = open_reading(path)
    except LogMissingError:
        return None
    except sqlite3.Error as error:
        raise LogError(f"{path} cannot be read: {error}.") from None
    try:
        connection = opened.connection
        connection.execute("BEGIN")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if not version:
            return None  # It is being created.
        tables = {name: _new_rows(connection, name, marks, most_rows) for name in _tables(connection)}
    except sqlite3.Error as error:
        raise LogError(f"{path} cannot be read: {error}.") from None
    finally:
        opened.close()
    is_complete = all(len(table.rows) < most_rows or name in _GROWING for name, table in tables.items())
    return NewRows(version, {name: table for name, table in tables.items() if table.rows}, is_complete)


def _tables(connection: sqlite3.Connection) -> list[str]:
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    return [name for (name,) in names if name not in _ROLLUPS]


def _new_rows(connection: sqlite3.Connection, table: str, marks: Marks, most_rows: int) -> TableRows:
    columns = _columns(connection, table)
    mark = marks.get(table, Mark())
    names = ", ".join(columns)
    if table in _WHOLE:
        rows = connection.execute(f"SELECT {names} FROM {table}").fetchall()
    elif table in _GROWING:
        column, rows = _GROWING[table], []
        first = mark.highest - column.late
        if _mark_from(connection, table, first) != mark:
            sql = f"SELECT {names} FROM {table} WHERE {column.name} >= ?"
            rows = connection.execute(sql, (first,)).fetchall()
    else:
        columns = ("rowid", *columns)
        sql = f"SELECT rowid, {names} FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?"
        rows = connection.execute(sql, (mark.highest, most_rows)).fetchall()
    return TableRows(columns, tuple(rows))


def _columns(connection: sqlite3.Connection, table: str) -> tuple[str, ...]:
    return tuple(row[1] for row in connection.execute(f"PRAGMA table_info({table})").fetchall())


class LogReplica(Closing):
    """The one writing connection to a copy of a log. A context manager."""

    def __init__(self, path: Path) -> None:
        """The file is created with the first rows. Raises HomeError, sqlite3.Error."""
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._marks: dict[str, Mark] = {}
        self._whole: dict[str, TableRows] = {}
        if path.exists():
            self._open()

    @property
    def marks(self) -> Marks:
        """The marks of the rows that have arrived."""
        return dict(self._marks)

    @property
    def last_step(self) -> int:
        """The last step that has arrived; 0 without one."""
        return max(0, self._marks.get("steps", Mark()).highest)

    def apply(self, new: NewRows) -> None:
        """Write new rows in one transaction. Raises LogNewerError, HomeError, sqlite3.Error; HomeFullError
        where they may be written later."""
        try:
            self._apply(new)
        except sqlite3.Error as error:
            if blame(error) is not Blame.DISK:
                raise
            raise HomeFullError(self._path, reason(error)) from None

    def _apply(self, new: NewRows) -> None:
        if new.version != len(LOG_MIGRATIONS):
            raise LogNewerError(
                f"The node's log has version {new.version}, and this Stepscope writes {len(LOG_MIGRATIONS)}; "
                "install the same version of Stepscope everywhere."
            )
        fresh = {name: rows for name, rows in new.tables.items() if self._whole.get(name) != rows}
        if not fresh:
            return
        connection = self._connection or self._open()
        last_step, last_seqs = self.last_step, _last_seqs(connection)
        connection.execute("BEGIN IMMEDIATE")
        try:
            for name, rows in fresh.items():
                _write(connection, name, rows)
            if "steps" in fresh:
                _roll_up_steps(connection, last_step)
            if "device_samples" in fresh:
                _roll_up_devices(connection, last_seqs)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        self._whole |= {name: rows for name, rows in fresh.items() if name in _WHOLE}
        self._marks = _read_marks(connection)

    def end(self, state: RunState, message: str, ended_unix_ns: int) -> bool:
        """Record the outcome of a run that has recorded none; return false without a log or with an
        outcome."""
        if self._connection is None:
            return False
        row = self._connection.execute("SELECT state FROM run").fetchone()
        if row is None or RunState(row[0]).is_over:
            return False
        sql = "UPDATE run SET state = ?, state_message = ?, ended_unix_ns = ?"
        self._connection.execute(sql, (state.value, message, ended_unix_ns))
        return True

    def close(self) -> None:
        """Close the copy; without readers it becomes a single file. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.execute("PRAGMA busy_timeout = 200")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.DatabaseError:
            pass  # With a reader it stays in WAL mode.
        finally:
            connection.close()

    def _open(self) -> sqlite3.Connection:
        self._connection = open_writing(self._path)
        self._marks = _read_marks(self._connection)
        return self._connection


def _write(connection: sqlite3.Connection, table: str, new: TableRows) -> None:
    if table in _WHOLE:
        connection.execute(f"DELETE FROM {table}")
    columns, rows = new.columns, new.rows
    if columns[0] == "rowid" and _has_integer_key(connection, table):
        columns, rows = columns[1:], tuple(row[1:] for row in rows)
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}) VALUES ({marks})"
    connection.executemany(sql, rows)


def _has_integer_key(connection: sqlite3.Connection, table: str) -> bool:
    """Return whether a column is the rowid."""
    keys = [row for row in connection.execute(f"PRAGMA table_info({table})").fetchall() if row[5]]
    return len(keys) == 1 and keys[0][2] == "INTEGER"


def _roll_up_steps(connection: sqlite3.Connection, before: int) -> None:
    """Aggregate the buckets that were completed by steps after `before`."""
    last = connection.execute("SELECT max(step) FROM steps").fetchone()[0]
    for level in range(1, LEVELS + 1):
        first, end = before // SIZES[level], last // SIZES[level]
        if end <= first:
            break
        connection.execute(step_rollup_sql(level), {"first": first, "end": end})


def _roll_up_devices(connection: sqlite3.Connection, before: Mapping[str, int]) -> None:
    """Aggregate the buckets that were completed by samples after those of `before`."""
    for device, last in _last_seqs(connection).items():
        for level in range(1, LEVELS + 1):
            first, end = before.get(device, 0) // SIZES[level], last // SIZES[level]
            if end <= first:
                break
            bounds = {"device": device, "first": first, "end": end}
            connection.execute(device_rollup_sql(level), bounds)


def _last_seqs(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT device, max(seq) FROM device_samples GROUP BY device").fetchall())


def _read_marks(connection: sqlite3.Connection) -> dict[str, Mark]:
    return {name: _read_mark(connection, name) for name in _tables(connection) if name not in _WHOLE}


def _read_mark(connection: sqlite3.Connection, table: str) -> Mark:
    column = _GROWING.get(table, _GrowingColumn("rowid"))
    highest = connection.execute(f"SELECT max({column.name}) FROM {table}").fetchone()[0]
    if highest is None:
        return Mark()
    return _mark_from(connection, table, highest - column.late) if table in _GROWING else Mark(highest, 1)


def _mark_from(connection: sqlite3.Connection, table: str, first: int) -> Mark:
    """Return the highest value of the growing column of `table`, and the number of rows from `first` on."""
    name = _GROWING[table].name
    sql = f"SELECT max({name}), count(*) FROM {table} WHERE {name} >= ?"
    highest, rows = connection.execute(sql, (first,)).fetchone()
    return Mark(_LOWEST if highest is None else highest, rows)

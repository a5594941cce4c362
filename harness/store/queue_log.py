"""The queue of runs in the home: one file that shells, dashboards and the queue's worker write.

As several processes write it, it has SQLite's rollback journal, and each operation opens it anew.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from harness.errors import HomeError, LogDamagedError, LogForeignError, LogNewerError, UsageError
from harness.files.regular import create_private
from harness.records.queue import PlacementRow, QueueRequest, QueueRow, QueueState
from harness.store.checked_rows import ValuesError, to_rows
from harness.store.control import refusal_reason, remedy
from harness.store.limits import Deadline, check_files, foreign_entry, limit
from harness.store.schema import QUEUE_APPLICATION_ID, QUEUE_MIGRATIONS, migrate
from harness.store.uris import sqlite_uri

_BUSY_S = 5.0
Row = TypeVar("Row", bound=NamedTuple)


class QueueLog:
    """The queue in the file at `path`. Thread-safe. Every method raises HomeError when the file cannot be
    read or written, LogError when it is invalid."""

    def __init__(self, path: Path, busy_s: float = _BUSY_S) -> None:
        """`busy_s` is the time that an operation waits for the lock of another process."""
        self._path = path
        self._busy_s = busy_s

    def add(self, request: QueueRequest) -> int:
        """Append an entry and return its id; adding the same `request_id` again has no effect."""
        columns = ", ".join(QueueRequest._fields)
        with self._transaction() as connection:
            connection.execute(
                f"INSERT OR IGNORE INTO entries ({columns}, state, reason, position) "
                f"SELECT {', '.join('?' * len(request))}, ?, '', coalesce(max(position), 0) + 1 FROM entries",
                (*request, QueueState.WAITING.value),
            )
            sql = "SELECT entry_id FROM entries WHERE request_id = ?"
            return int(connection.execute(sql, (request.request_id,)).fetchone()[0])

    def entries(self) -> list[QueueRow]:
        """Return all entries in the order of their positions."""
        columns = ", ".join(QueueRow._fields)
        return self._select(QueueRow, f"SELECT {columns} FROM entries ORDER BY position, entry_id")

    def placements(self) -> list[PlacementRow]:
        """Return the runs that the queue started and that may not be over."""
        return self._select(PlacementRow, "SELECT run_id, device FROM placements ORDER BY run_id")

    def is_paused(self) -> bool:
        """Return whether nothing starts, on request."""
        return any(value for (value,) in self._read("SELECT is_paused FROM queue"))

    def pause(self, *, is_paused: bool) -> None:
        """Pause the queue, or resume it."""
        with self._transaction() as connection:
            connection.execute("UPDATE queue SET is_paused = ?", (int(is_paused),))

    def remove(self, entry_id: int) -> None:
        """Remove an entry. Raises UsageError for one that is not there, or is starting."""
        with self._change_of(entry_id) as connection:
            connection.execute("DELETE FROM entries WHERE entry_id = ?", (entry_id,))
            _number(connection)

    def move(self, entry_id: int, position: int) -> None:
        """Move an entry to a position, from 1; a number beyond the last is the last. Raises UsageError."""
        with self._change_of(entry_id) as connection:
            sql = "SELECT entry_id FROM entries WHERE entry_id != ? ORDER BY position"
            order = [row[0] for row in connection.execute(sql, (entry_id,)).fetchall()]
            order.insert(max(0, position - 1), entry_id)
            _number(connection, order)

    def set_state(self, entry_id: int, state: QueueState, reason: str = "") -> None:
        """Set the state of an entry, and why it has not started. Raises UsageError."""
        with self._change_of(entry_id) as connection:
            sql = "UPDATE entries SET state = ?, reason = ? WHERE entry_id = ?"
            connection.execute(sql, (state.value, reason, entry_id))

    def force(self, entry_id: int) -> None:
        """Let an entry start although it is predicted not to fit. Raises UsageError."""
        with self._change_of(entry_id) as connection:
            sql = "UPDATE entries SET is_forced = 1, state = ?, reason = '' WHERE entry_id = ?"
            connection.execute(sql, (QueueState.WAITING.value, entry_id))

    def explain(self, reasons: dict[int, str]) -> None:
        """Set why entries wait; those that are gone or no longer waiting are left out."""
        sql = "UPDATE entries SET reason = ? WHERE entry_id = ? AND state = ?"
        rows = [(reason, entry_id, QueueState.WAITING.value) for entry_id, reason in reasons.items()]
        with self._transaction() as connection:
            connection.executemany(sql, rows)

    def begin_start(self, entry_id: int, device: str) -> bool:
        """Record that the entry is about to start on `device`; false when it was removed or paused, or the
        whole queue was."""
        with self._transaction() as connection:
            changed = connection.execute(
                "UPDATE entries SET starting_on = ? WHERE entry_id = ? AND state = ? "
                "AND (SELECT is_paused FROM queue) = 0",
                (device, entry_id, QueueState.WAITING.value),
            )
            return changed.rowcount == 1

    def end_start(self, entry_id: int, run_id: str, device: str) -> None:
        """Replace the entry by the run that it has become."""
        with self._transaction() as connection:
            sql = "INSERT OR REPLACE INTO placements (run_id, device) VALUES (?, ?)"
            connection.execute(sql, (run_id, device))
            connection.execute("DELETE FROM entries WHERE entry_id = ?", (entry_id,))
            _number(connection)

    def cancel_start(self, entry_id: int) -> None:
        """Record that the entry has not started."""
        with self._transaction() as connection:
            connection.execute("UPDATE entries SET starting_on = NULL WHERE entry_id = ?", (entry_id,))

    def forget_placements(self, run_ids: list[str]) -> None:
        """Remove the placements of runs that are over."""
        with self._transaction() as connection:
            connection.executemany("DELETE FROM placements WHERE run_id = ?", [(r,) for r in run_ids])

    def _select(self, row: type[Row], sql: str) -> list[Row]:
        try:
            return to_rows(row, self._read(sql))
        except ValuesError as error:
            raise LogDamagedError(f"{self._path} is damaged ({error}); delete it.") from None

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the result of a query; empty without a file. Works in a read-only folder too."""
        if not self._path.exists():
            return []
        with self._connection("rw" if os.access(self._path, os.W_OK) else "ro") as connection:
            return connection.execute(sql).fetchall() if self._check(connection) else []

    @contextmanager
    def _change_of(self, entry_id: int) -> Iterator[sqlite3.Connection]:
        """A transaction on an entry. Raises UsageError when it is not there, or is starting."""
        if not self._path.exists():
            raise _missing(entry_id)
        with self._transaction() as connection:
            _check_idle(connection, entry_id)
            yield connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction that is committed at the end of the block."""
        with self._connection("rwc") as connection:
            self._check(connection)
            migrate(connection, QUEUE_MIGRATIONS, QUEUE_APPLICATION_ID)
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def _connection(self, mode: str) -> Iterator[sqlite3.Connection]:
        """A connection; what is not committed at the end of the block is rolled back."""
        try:
            check_files(self._path)
            if mode == "rwc":
                create_private(self._path)
            uri = sqlite_uri(self._path, f"mode={mode}")
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=self._busy_s)
            try:
                limit(connection)
                Deadline(connection)
                yield connection
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            raise HomeError(
                f"{self._path} cannot be used: {refusal_reason(error)}; {remedy(error)}."
            ) from None
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                raise LogForeignError(f"{self._path} is not an SQLite file; move it away.") from None
            raise LogDamagedError(f"{self._path} is damaged ({error}); delete it.") from None
        except OSError as error:
            raise HomeError(
                f"{self._path} cannot be used: {error.strerror or error}; check the folder and the disk."
            ) from None

    def _check(self, connection: sqlite3.Connection) -> bool:
        """Return whether the file has its tables. Raises LogForeignError or LogNewerError."""
        # In one transaction: otherwise another process could create the tables in between.
        connection.execute("BEGIN")
        application_id = _value(connection, "PRAGMA application_id")
        version = _value(connection, "PRAGMA user_version")
        tables = _value(connection, "SELECT count(*) FROM sqlite_schema")
        foreign = foreign_entry(connection)
        connection.execute("ROLLBACK")
        if foreign is not None or (tables and application_id != QUEUE_APPLICATION_ID):
            raise LogForeignError(f"{self._path} is not a queue of Stepscope; move it away.")
        if version > len(QUEUE_MIGRATIONS):
            raise LogNewerError(f"{self._path} was written by a newer Stepscope; update Stepscope.")
        return bool(tables)


def _value(connection: sqlite3.Connection, sql: str) -> Any:
    return connection.execute(sql).fetchone()[0]


def _check_idle(connection: sqlite3.Connection, entry_id: int) -> None:
    """Raise UsageError when there is no such entry, or it is starting."""
    sql = "SELECT starting_on FROM entries WHERE entry_id = ?"
    row = connection.execute(sql, (entry_id,)).fetchone()
    if row is None:
        raise _missing(entry_id)
    if row[0] is not None:
        raise UsageError(f"Entry {entry_id} is starting on {row[0]} right now; stop the run instead.")


def _missing(entry_id: int) -> UsageError:
    return UsageError(f"There is no entry {entry_id} in the queue; it may have started: stepscope list")


def _number(connection: sqlite3.Connection, order: list[int] | None = None) -> None:
    """Number the positions from 1, in `order`, or as they are."""
    if order is None:
        rows = connection.execute("SELECT entry_id FROM entries ORDER BY position, entry_id").fetchall()
        order = [row[0] for row in rows]
    sql = "UPDATE entries SET position = ? WHERE entry_id = ?"
    connection.executemany(sql, [(at, entry_id) for at, entry_id in enumerate(order, 1)])

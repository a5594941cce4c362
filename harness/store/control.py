"""A run's control file: what people asked of it, and how its process ended.

Several processes write it (shell, dashboard, the parent of the run), so it keeps SQLite's rollback journal,
which is safe for that; see DESIGN on the write-ahead log.
"""

import sqlite3
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from harness.errors import HomeError, LogDamagedError, LogForeignError, LogNewerError
from harness.records import CommandRow, ExitRow
from harness.store.folder import RunFolder
from harness.store.schema import CONTROL_APPLICATION_ID, CONTROL_MIGRATIONS, migrate

# Writers hold the file for one small transaction each: milliseconds, on a busy disk a second.
BUSY_S = 5.0
# Reading is tried again with the next poll, and pages are drawn meanwhile.
_READ_BUSY_S = 0.2


class ControlLog:
    """The control file of one run. Writing opens it anew each time; polling for commands keeps a read-only
    connection, so an instance serves one thread at a time. A context manager."""

    def __init__(self, folder: RunFolder, busy_s: float = BUSY_S) -> None:
        """`busy_s` is how long writing waits while another process keeps the file locked."""
        self._path = folder.control
        self._busy_s = busy_s
        self._reading: sqlite3.Connection | None = None
        self._is_unread = False

    @property
    def is_unread(self) -> bool:
        """Whether the last reading failed because another process keeps the file locked: that nothing was
        read does not mean that nothing is there."""
        return self._is_unread

    def send(self, command: CommandRow) -> None:
        """Leave a command for the run; sending one `command_id` twice is sending it once.

        Raises HomeError when the folder cannot be written, LogError when the file is not what it should be.
        """
        self._write(
            "INSERT OR IGNORE INTO commands (command_id, created_unix_ns, kind, payload, source) "
            "VALUES (?, ?, ?, ?, ?)",
            command,
        )

    def record_exit(self, row: ExitRow) -> None:
        """Note how the training process ended. Raises as `send`."""
        self._write("INSERT INTO exits (pid, observed_unix_ns, returncode) VALUES (?, ?, ?)", row)

    def commands(self, after_rowid: int = 0) -> list[tuple[int, CommandRow]]:
        """The commands after `after_rowid`, in order, each with its row id; none when nobody asked yet."""
        rows = self._read("SELECT * FROM commands WHERE id > ? ORDER BY id", (after_rowid,))
        return [(row[0], CommandRow(*row[1:])) for row in rows]

    def last_exit(self) -> ExitRow | None:
        """How the training process ended, as its parent saw it last; None when no parent saw it."""
        rows = self._read("SELECT * FROM exits ORDER BY id DESC LIMIT 1", ())
        return ExitRow(*rows[0][1:]) if rows else None

    def close(self) -> None:
        """Close what polling keeps open. Idempotent."""
        connection, self._reading = self._reading, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, sql: str, values: tuple[object, ...]) -> None:
        try:
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=self._busy_s)
            try:
                connection.execute("PRAGMA trusted_schema = OFF")
                self._check(connection, fresh_is_fine=True)
                migrate(connection, CONTROL_MIGRATIONS, CONTROL_APPLICATION_ID)
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(sql, values)
                connection.execute("COMMIT")
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            raise HomeError(f"{self._path} cannot be written: {_reason(error)}; {_remedy(error)}.") from None
        except sqlite3.DatabaseError as error:
            raise self._not_ours(error) from None

    def _read(self, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        self._is_unread = False
        try:
            if self._reading is None:
                if not self._path.exists():
                    return []
                self._reading = _open_reading(self._path)
            if not self._check(self._reading, fresh_is_fine=True):
                return []
            return self._reading.execute(sql, values).fetchall()
        except sqlite3.OperationalError:
            self.close()  # Not there yet, or locked for long: the next poll tries again.
            self._is_unread = self._path.exists()
            return []
        except sqlite3.DatabaseError as error:
            self.close()
            raise self._not_ours(error) from None

    def _check(self, connection: sqlite3.Connection, fresh_is_fine: bool) -> bool:
        """Whether the file has its tables; raises LogForeignError or LogNewerError."""
        # In one transaction: between two looks another sender may have made the tables.
        connection.execute("BEGIN")
        try:
            application_id = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        finally:
            if connection.in_transaction:  # SQLite ends it by itself on some errors.
                connection.execute("ROLLBACK")
        if application_id == CONTROL_APPLICATION_ID:
            if version > len(CONTROL_MIGRATIONS):
                raise LogNewerError(f"{self._path} was written by a newer Stepscope; update Stepscope.")
            return True
        if fresh_is_fine and not tables:
            return False
        raise LogForeignError(
            f"{self._path} is not a Stepscope control file; move it out of the run's folder."
        )

    def _not_ours(self, error: sqlite3.DatabaseError) -> LogForeignError | LogDamagedError:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            return LogForeignError(f"{self._path} is not an SQLite file; move it out of the run's folder.")
        return LogDamagedError(
            f"{self._path} is damaged ({error}); delete it, or copy the run's folder again."
        )


def _open_reading(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode=rw"  # A killed sender can leave a journal to roll back.
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_READ_BUSY_S, check_same_thread=False)


def _is_locked(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _reason(error: sqlite3.OperationalError) -> str:
    return "another process keeps it locked" if _is_locked(error) else str(error)


def _remedy(error: sqlite3.OperationalError) -> str:
    if _is_locked(error):
        return "try again when that one is done"
    if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
        return "free space on that disk, and try again"
    return "check the folder and the disk"

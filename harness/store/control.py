"""A run's control file: the commands to the run, and the exit of its process.

Several processes write it (shell, dashboard, the parent of the run), so it has SQLite's rollback journal:
some versions of SQLite can lose pages when two connections write one WAL file at once.
"""

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from harness.closing import Closing
from harness.errors import HomeError, LogDamagedError, LogForeignError, LogNewerError
from harness.files.regular import create_private
from harness.records.run import CommandRow, ExitRow
from harness.store.checked_rows import ValuesError, to_rows
from harness.store.folder import RunFolder
from harness.store.limits import Deadline, check_files, foreign_entry, limit
from harness.store.schema import CONTROL_APPLICATION_ID, CONTROL_MIGRATIONS, migrate
from harness.store.uris import sqlite_uri

# A writer locks the file for one small transaction: milliseconds, on a busy disk a second.
BUSY_S = 5.0
# Reading is retried with the next poll, and must not delay a page.
_READ_BUSY_S = 0.2
_MOST_COMMANDS = 10_000
Row = TypeVar("Row", bound=NamedTuple)


class ControlLog(Closing):
    """The control file of one run. Each write opens it anew; polling retains a connection for reading, so an
    instance serves one thread at a time. A context manager."""

    def __init__(self, folder: RunFolder, busy_s: float = BUSY_S) -> None:
        """`busy_s` is the time that a write waits for the lock of another process."""
        self._path = folder.control
        self._busy_s = busy_s
        self._reading: sqlite3.Connection | None = None
        self._is_unread = False

    @property
    def is_unread(self) -> bool:
        """True when the last read failed because another process had locked the file, so that an empty result
        does not mean an empty file."""
        return self._is_unread

    def send(self, command: CommandRow) -> None:
        """Send a command to the run; sending the same `command_id` again has no effect.

        Raises HomeError when the folder cannot be written, LogError when the file is invalid.
        """
        self._write(
            "INSERT OR IGNORE INTO commands (command_id, created_unix_ns, kind, payload, source) "
            "VALUES (?, ?, ?, ?, ?)",
            command,
        )

    def record_exit(self, row: ExitRow) -> None:
        """Record the exit of the training process. Raises as `send`."""
        self._write("INSERT INTO exits (pid, observed_unix_ns, returncode) VALUES (?, ?, ?)", row)

    def commands(self, after_rowid: int = 0) -> list[tuple[int, CommandRow]]:
        """Return the commands after `after_rowid`, in order, each with its row id.

        At most 10,000: the next call returns the rest. Raises LogError.
        """
        sql = f"SELECT id, {', '.join(CommandRow._fields)} FROM commands WHERE id > ? ORDER BY id LIMIT ?"
        rows = self._read(sql, (after_rowid, _MOST_COMMANDS))
        return list(zip((values[0] for values in rows), self._rows(CommandRow, rows), strict=True))

    def newest_commands(self) -> list[CommandRow]:
        """Return the newest 10,000 commands, in order. Raises LogError."""
        sql = f"SELECT id, {', '.join(CommandRow._fields)} FROM commands ORDER BY id DESC LIMIT ?"
        return self._rows(CommandRow, self._read(sql, (_MOST_COMMANDS,)))[::-1]

    def last_exit(self) -> ExitRow | None:
        """Return the last recorded exit of the training process, None without one."""
        sql = f"SELECT id, {', '.join(ExitRow._fields)} FROM exits ORDER BY id DESC LIMIT 1"
        return next(iter(self._rows(ExitRow, self._read(sql, ()))), None)

    def close(self) -> None:
        """Close the connection for reading. Idempotent."""
        connection, self._reading = self._reading, None
        if connection is not None:
            connection.close()

    def _write(self, sql: str, values: tuple[object, ...]) -> None:
        try:
            self._check_files()
            create_private(self._path)
            connection = sqlite3.connect(self._path, isolation_level=None, timeout=self._busy_s)
            try:
                limit(connection)
                self._check(connection, fresh_is_fine=True)
                migrate(connection, CONTROL_MIGRATIONS, CONTROL_APPLICATION_ID)
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(sql, values)
                connection.execute("COMMIT")
            finally:
                connection.close()
        except sqlite3.OperationalError as error:
            raise HomeError(
                f"{self._path} cannot be written: {refusal_reason(error)}; {remedy(error)}."
            ) from None
        except OSError as error:
            raise HomeError(
                f"{self._path} cannot be written: {error.strerror or error}; check the folder and the disk."
            ) from None
        except sqlite3.DatabaseError as error:
            raise self._invalid_file(error) from None

    def _read(self, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        self._is_unread = False
        try:
            if self._reading is None:
                self._check_files()
                if not self._path.exists():
                    return []
                self._reading = _open_reading(self._path)
            deadline = Deadline(self._reading)
            deadline.begin_query()
            if not self._check(self._reading, fresh_is_fine=True):
                return []
            return self._reading.execute(sql, values).fetchall()
        except sqlite3.OperationalError:
            self.close()  # Missing or locked: the next poll retries.
            self._is_unread = self._path.exists()
            return []
        except sqlite3.DatabaseError as error:
            self.close()
            raise self._invalid_file(error) from None

    def _check(self, connection: sqlite3.Connection, fresh_is_fine: bool) -> bool:
        """Return whether the file has its tables; raises LogForeignError or LogNewerError."""
        # In one transaction: otherwise another sender could create the tables in between.
        connection.execute("BEGIN")
        try:
            application_id = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            foreign = foreign_entry(connection)
        finally:
            if connection.in_transaction:  # SQLite ends it by itself on some errors.
                connection.execute("ROLLBACK")
        if foreign is not None:
            raise LogForeignError(
                f"{self._path} is not a valid control file: it contains {foreign}; move it out of "
                "the run's folder."
            )
        if application_id == CONTROL_APPLICATION_ID:
            if version > len(CONTROL_MIGRATIONS):
                raise LogNewerError(f"{self._path} was written by a newer Stepscope; update Stepscope.")
            return True
        if fresh_is_fine and not tables:
            return False
        raise LogForeignError(
            f"{self._path} is not a Stepscope control file; move it out of the run's folder."
        )

    def _check_files(self) -> None:
        try:
            check_files(self._path)
        except OSError as error:
            raise LogForeignError(
                f"{self._path} cannot be used: {error.strerror}; move it out of the run's folder."
            ) from None

    def _rows(self, row: type[Row], tuples: list[tuple[Any, ...]]) -> list[Row]:
        """Convert the result of a query with a leading id to rows. Raises LogDamagedError."""
        try:
            return to_rows(row, (values[1:] for values in tuples))
        except ValuesError as error:
            raise LogDamagedError(
                f"{self._path} is damaged ({error}); delete it, or copy the run's folder again."
            ) from None

    def _invalid_file(self, error: sqlite3.DatabaseError) -> LogForeignError | LogDamagedError:
        if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
            return LogForeignError(f"{self._path} is not an SQLite file; move it out of the run's folder.")
        return LogDamagedError(
            f"{self._path} is damaged ({error}); delete it, or copy the run's folder again."
        )


def _open_reading(path: Path) -> sqlite3.Connection:
    uri = sqlite_uri(path, "mode=rw")  # A killed sender can leave a journal to roll back.
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=_READ_BUSY_S, check_same_thread=False
    )
    limit(connection)
    return connection


def _is_locked(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def refusal_reason(error: sqlite3.OperationalError) -> str:
    """Return why SQLite refused an operation, as a clause."""
    return "another process has locked it" if _is_locked(error) else str(error)


def remedy(error: sqlite3.OperationalError) -> str:
    """Return what to do about it, as a clause."""
    if _is_locked(error):
        return "try again when that process has finished"
    if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_FULL:
        return "free space on that disk, and try again"
    return "check the folder and the disk"

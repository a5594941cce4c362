"""Opening a log for reading in any state, without changing its content.

Three cases need more than a read-only connection: a read-only folder, where SQLite cannot create the
write-ahead log's shared memory; a log whose writer was killed while creating or closing it, so that a
transaction must be rolled back first; and a file that is not a log.
"""

import os
import shutil
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from harness.errors import LogError, LogForeignError, LogMissingError
from harness.files.regular import read_start
from harness.store.limits import check_files
from harness.store.uris import sqlite_uri
from harness.words import printable

_BUSY_S = 2.0
_MAGIC = b"SQLite format 3\0"
_COMPANIONS = ("", "-wal", "-journal")


class Opened(NamedTuple):
    """A read-only connection, and the folder of the copy that it reads, if any."""

    connection: sqlite3.Connection
    scratch: TemporaryDirectory[str] | None

    def close(self) -> None:
        """Close the connection and remove the copy."""
        self.connection.close()
        if self.scratch is not None:
            self.scratch.cleanup()


def open_reading(path: Path) -> Opened:
    """Open the log at `path`. Raises LogMissingError, LogForeignError, LogError or sqlite3.Error."""
    try:
        check_files(path)
    except OSError as error:
        raise _unreadable(path, error) from None
    _check_header(path)
    if os.access(path.parent, os.W_OK):
        return Opened(_rolled_back(path), None)
    if _companion(path, "-journal").exists() or (
        _companion(path, "-wal").exists() and not _companion(path, "-shm").exists()
    ):
        return _open_copy(path)
    mode = "mode=ro" if _companion(path, "-wal").exists() else "mode=ro&immutable=1"
    return Opened(_connect(path, mode), None)


def _companion(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _rolled_back(path: Path) -> sqlite3.Connection:
    """Connect to the log after rolling back the transaction of a killed writer.

    SQLite's locks ensure that only the journal of an ended writer is rolled back.
    """
    connection = _connect(path, "mode=ro")
    if not _companion(path, "-journal").exists():
        return connection
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
            raise
        repairing = sqlite3.connect(sqlite_uri(path, "mode=rw"), uri=True, timeout=_BUSY_S)
        try:
            repairing.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        finally:
            repairing.close()
        connection = _connect(path, "mode=ro")
    return connection


def _open_copy(path: Path) -> Opened:
    scratch = TemporaryDirectory(prefix="stepscope-")
    copy = Path(scratch.name) / path.name
    try:
        for suffix in _COMPANIONS:
            if os.path.lexists(_companion(path, suffix)):
                shutil.copyfile(_companion(path, suffix), _companion(copy, suffix))
        return Opened(_rolled_back(copy), scratch)
    except OSError as error:
        scratch.cleanup()
        raise _unreadable(path, error) from None
    except BaseException:
        scratch.cleanup()
        raise


def _check_header(path: Path) -> None:
    """Detect a missing, empty or foreign file by its first bytes."""
    try:
        start = read_start(path, len(_MAGIC))
    except FileNotFoundError:
        raise LogMissingError(f"There is no log at {printable(str(path))} (yet).") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not start:
        raise LogMissingError(f"{printable(str(path))} is still empty; try again in a moment.")
    if start != _MAGIC:
        raise LogForeignError(
            f"{printable(str(path))} is not a Stepscope log, and not an SQLite file at all."
        )


def _unreadable(path: Path, error: OSError) -> LogError:
    return LogError(f"{printable(str(path))} cannot be read: {error.strerror or error}.")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(sqlite_uri(path, mode), uri=True, isolation_level=None, timeout=_BUSY_S)
    connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection

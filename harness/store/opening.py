"""Opens a log for reading, whatever state its writer left it in, without ever changing what it says.

Three things need more than a read-only connection: a folder that cannot be written, where SQLite has no place
for the write-ahead log's shared memory; a writer killed while it began or closed the log, whose half-made
change must be rolled back first; and a file that is no log at all.
"""

import os
import shutil
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import quote

from harness.errors import LogError, LogForeignError, LogMissingError
from harness.regular_files import read_start
from harness.store.limits import check_files
from harness.words import printable

_BUSY_S = 2.0
_MAGIC = b"SQLite format 3\0"
_COMPANIONS = ("", "-wal", "-journal")


class Opened(NamedTuple):
    """A read-only connection, and the folder of the copy it reads, if it reads one."""

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
        return Opened(_settled(path), None)
    if _beside(path, "-journal").exists() or (
        _beside(path, "-wal").exists() and not _beside(path, "-shm").exists()
    ):
        return _open_copy(path)
    mode = "mode=ro" if _beside(path, "-wal").exists() else "mode=ro&immutable=1"
    return Opened(_connect(path, mode), None)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _settled(path: Path) -> sqlite3.Connection:
    """A connection to the log, after rolling back what a killed writer left half done.

    Only a journal whose writer is gone can be rolled back; SQLite's locks see to that.
    """
    connection = _connect(path, "mode=ro")
    if not _beside(path, "-journal").exists():
        return connection
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY:
            raise
        mending = sqlite3.connect(_uri(path, "mode=rw"), uri=True, timeout=_BUSY_S)
        try:
            mending.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        finally:
            mending.close()
        connection = _connect(path, "mode=ro")
    return connection


def _open_copy(path: Path) -> Opened:
    scratch = TemporaryDirectory(prefix="stepscope-")
    copy = Path(scratch.name) / path.name
    try:
        for suffix in _COMPANIONS:
            if os.path.lexists(_beside(path, suffix)):
                shutil.copyfile(_beside(path, suffix), _beside(copy, suffix))
        return Opened(_settled(copy), scratch)
    except OSError as error:
        scratch.cleanup()
        raise _unreadable(path, error) from None
    except BaseException:
        scratch.cleanup()
        raise


def _check_header(path: Path) -> None:
    """Tell a missing, empty or foreign file by its first bytes."""
    try:
        start = read_start(path, len(_MAGIC))
    except FileNotFoundError:
        raise LogMissingError(f"There is no log at {printable(str(path))} (yet).") from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not start:
        raise LogMissingError(f"{printable(str(path))} has not been begun yet; try again in a moment.")
    if start != _MAGIC:
        raise LogForeignError(
            f"{printable(str(path))} is not a Stepscope log, and not an SQLite file at all."
        )


def _unreadable(path: Path, error: OSError) -> LogError:
    return LogError(f"{printable(str(path))} cannot be read: {error.strerror or error}.")


def _uri(path: Path, mode: str) -> str:
    # As bytes: a name that is no UTF-8 is a name too.
    return f"file:{quote(os.fsencode(path))}?{mode}"


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(_uri(path, mode), uri=True, isolation_level=None, timeout=_BUSY_S)
    connection.execute("PRAGMA query_only = 1")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection

"""Classification of SQLite errors by cause: the row, the disk or another process, or the log's file.

Only an error caused by a row may drop a row. An error caused by the disk ends when the disk recovers; one
caused by the file is permanent, so waiting does not help.
"""

import sqlite3
from enum import Enum, auto


class Blame(Enum):
    """The cause of an error."""

    # The row cannot be stored by any log.
    ROW = auto()
    # The disk is full or read-only, the file is locked, or memory is short: a retry may succeed.
    DISK = auto()
    # The log's file is damaged and can no longer be written.
    FILE = auto()
    # It may be temporary; if it persists, the cause is the file.
    UNCLEAR = auto()


# Every type of error with which a row can be rejected.
ROW_ERRORS = (sqlite3.Error, OverflowError, UnicodeEncodeError)

_BY_CODE = {
    sqlite3.SQLITE_CONSTRAINT: Blame.ROW,
    sqlite3.SQLITE_MISMATCH: Blame.ROW,
    sqlite3.SQLITE_TOOBIG: Blame.ROW,
    sqlite3.SQLITE_RANGE: Blame.ROW,
    sqlite3.SQLITE_CORRUPT: Blame.FILE,
    sqlite3.SQLITE_NOTADB: Blame.FILE,
    sqlite3.SQLITE_IOERR: Blame.UNCLEAR,
    sqlite3.SQLITE_ERROR: Blame.UNCLEAR,
    sqlite3.SQLITE_SCHEMA: Blame.UNCLEAR,
    sqlite3.SQLITE_FORMAT: Blame.UNCLEAR,
}


def blame(error: Exception) -> Blame:
    """Classify `error`, raised while rows were appended."""
    if isinstance(error, OverflowError | UnicodeEncodeError):
        return Blame.ROW
    if not isinstance(error, sqlite3.Error):
        return Blame.DISK
    code: int | None = getattr(error, "sqlite_errorcode", None)
    if code is None:  # Raised by Python's module itself, as when a value has a type that cannot be bound.
        is_binding = isinstance(error, sqlite3.InterfaceError | sqlite3.ProgrammingError | sqlite3.DataError)
        return Blame.ROW if is_binding else Blame.DISK
    return _BY_CODE.get(code & 0xFF, Blame.DISK)


def reason(error: Exception) -> str:
    """Return the error's text as a clause."""
    if isinstance(error, MemoryError):
        return "out of memory"
    return " ".join(str(error).split()) or type(error).__name__

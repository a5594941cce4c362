"""What an error of SQLite blames: the row, the disk or whoever else uses the log, or the log's own file.

Only an error that blames a row may cost a row. An error that blames the disk passes when the disk recovers;
one that blames the file does not, so that waiting would not end.
"""

import sqlite3
from enum import Enum, auto


class Blame(Enum):
    """Where the cause of an error lies."""

    # The row cannot be stored by any log.
    ROW = auto()
    # The disk is full, locked or read-only, or memory is short: the same write may succeed later.
    DISK = auto()
    # The log's file is damaged: it cannot be written any more.
    FILE = auto()
    # It may pass; when it stays, the file is to blame.
    UNCLEAR = auto()


# Every type of error by which a row can be refused.
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
    """What `error`, raised while rows were appended, blames."""
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
    """The error in a few words, for a sentence."""
    if isinstance(error, MemoryError):
        return "out of memory"
    return " ".join(str(error).split()) or type(error).__name__

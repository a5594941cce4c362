"""Limits on what an SQLite file that anybody may have written can make its reader do.

A file brings its own schema: a view in a table's place can run for ever, a trigger changes what is written, a
virtual table runs code of an extension. Its values can be of any size, and any query over it can take any
time. So a connection gets limits, its schema is checked to consist of tables and indexes, and every query has
a deadline.
"""

import errno
import math
import sqlite3
import time
from pathlib import Path

from harness.regular_files import check_regular, read_end

# Over a million steps the slowest query of a page (six thousand steps far apart, for the Profiler page) takes
# 0.13 s of processor time. It reads as many rows of a longer run; a machine under load takes ten times that.
QUERY_LIMIT_S = 10.0
# One text or blob. The longest that Stepscope writes is a report on memory running out, some 100 KB.
_MOST_VALUE_BYTES = 1 << 20
# Between two readings of the clock, each of which has to wait for the interpreter's lock. A scan of a million
# rows takes 1 % longer for it.
_OPCODES_PER_READING = 100_000
_COMPANIONS = ("", "-wal", "-shm", "-journal")
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_FOREIGN_ENTRY = """SELECT type, name FROM sqlite_schema WHERE NOT coalesce(rootpage > 0 AND (
    (type = 'table' AND sql LIKE 'CREATE TABLE %') OR (type = 'index' AND (
        sql IS NULL OR sql LIKE 'CREATE INDEX %' OR sql LIKE 'CREATE UNIQUE INDEX %'))), 0) LIMIT 1"""


class Deadline:
    """Ends the queries of one connection that take too long: each by `query_limit_s`, all by `total_limit_s`
    after the deadline was set up. An ended query raises sqlite3.OperationalError (SQLITE_INTERRUPT)."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        query_limit_s: float = QUERY_LIMIT_S,
        total_limit_s: float = math.inf,
    ) -> None:
        self.limit_s = min(query_limit_s, total_limit_s)
        self._query_limit_s = query_limit_s
        self._end_s = time.monotonic() + total_limit_s
        self._query_end_s = self._end_s
        connection.set_progress_handler(self.is_over, _OPCODES_PER_READING)

    def begin_query(self) -> None:
        """Give the next query its time."""
        self._query_end_s = min(self._end_s, time.monotonic() + self._query_limit_s)

    def lift(self) -> None:
        """Let all later queries take as long as they need."""
        self._query_limit_s = self._end_s = math.inf

    def is_over(self) -> bool:
        """Whether the query under way has had its time."""
        return time.monotonic() > self._query_end_s


def limit(connection: sqlite3.Connection) -> None:
    """Limit what the statements and values of a connection can be."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 50)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def foreign_entry(connection: sqlite3.Connection) -> str | None:
    """The first entry of the schema that is neither a table nor an index, in words: "the view 'steps'"."""
    found = connection.execute(_FOREIGN_ENTRY).fetchone()
    return None if found is None else f"the {str(found[0])[:20]} {str(found[1])[:60]!r}"


def check_files(path: Path) -> None:
    """Raise OSError when the SQLite file at `path`, or a file that belongs to it, is no regular file, or its
    journal names another file.

    SQLite opens them by name and would wait for a named pipe for ever. A journal that is part of a change of
    several files names a file that SQLite deletes after a rollback; Stepscope never writes such a journal.
    """
    for suffix in _COMPANIONS:
        check_regular(path.with_name(path.name + suffix))
    journal = path.with_name(path.name + "-journal")
    try:
        end = read_end(journal, len(_JOURNAL_MAGIC))
    except FileNotFoundError:  # Another process has just ended its transaction, or there was none.
        return
    if end == _JOURNAL_MAGIC:
        raise OSError(errno.EINVAL, "its journal names another file, as none of Stepscope's does")

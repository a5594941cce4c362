"""Limits for reading untrusted SQLite files.

A file brings its own schema: a view instead of a table can run forever, a trigger changes what is written, a
virtual table runs code of an extension. Values can have any size, and queries can take any time. So a
connection gets limits, its schema must consist of tables and indexes, and every query has a deadline.
"""

import errno
import math
import sqlite3
import time
from pathlib import Path

from harness.files.regular import check_regular, read_end

# In a log of a million steps the slowest query of a page (six thousand steps, evenly spaced, for the Profiler
# page) takes 0.13 s of CPU time. It reads no more rows of a longer run; a loaded machine takes ten times
# that.
QUERY_LIMIT_S = 10.0
# One text or blob. The longest that Stepscope writes is an out-of-memory report of about 100 KB.
_MOST_VALUE_BYTES = 1 << 20
# Between two readings of the clock, each of which waits for the interpreter's lock. It slows a scan of a
# million rows by 1 %.
_OPCODES_PER_READING = 100_000
_COMPANIONS = ("", "-wal", "-shm", "-journal")
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
_FOREIGN_ENTRY = """SELECT type, name FROM sqlite_schema WHERE NOT coalesce(rootpage > 0 AND (
    (type = 'table' AND sql LIKE 'CREATE TABLE %') OR (type = 'index' AND (
        sql IS NULL OR sql LIKE 'CREATE INDEX %' OR sql LIKE 'CREATE UNIQUE INDEX %'))), 0) LIMIT 1"""


class Deadline:
    """Interrupts slow queries of one connection: each after `query_limit_s`, all after `total_limit_s` since
    construction. An interrupted query raises sqlite3.OperationalError (SQLITE_INTERRUPT)."""

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
        """Restart the limit for the next query."""
        self._query_end_s = min(self._end_s, time.monotonic() + self._query_limit_s)

    def lift(self) -> None:
        """Remove the limits for all later queries."""
        self._query_limit_s = self._end_s = math.inf

    def is_over(self) -> bool:
        """Return whether the current query has reached its limit."""
        return time.monotonic() > self._query_end_s


def limit(connection: sqlite3.Connection) -> None:
    """Limit the statements and values of a connection."""
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_EXPR_DEPTH, 50)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def foreign_entry(connection: sqlite3.Connection) -> str | None:
    """Return the first entry of the schema that is neither a table nor an index, as "the view 'steps'"."""
    entry = connection.execute(_FOREIGN_ENTRY).fetchone()
    return None if entry is None else f"the {str(entry[0])[:20]} {str(entry[1])[:60]!r}"


def check_files(path: Path) -> None:
    """Raise OSError when the SQLite file at `path`, or a companion of it, is not a regular file, or its
    journal names another file.

    SQLite opens them by name and would wait for a named pipe forever. The journal of a transaction over
    several files names a file that SQLite deletes after a rollback; Stepscope never writes such a journal.
    """
    for suffix in _COMPANIONS:
        check_regular(path.with_name(path.name + suffix))
    journal = path.with_name(path.name + "-journal")
    try:
        end = read_end(journal, len(_JOURNAL_MAGIC))
    except FileNotFoundError:  # There was no transaction, or another process has just ended it.
        return
    if end == _JOURNAL_MAGIC:
        raise OSError(errno.EINVAL, "its journal names another file, which Stepscope never writes")

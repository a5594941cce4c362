"""A copy of a foreign log, validated, for a home of one's own."""

import sqlite3
from pathlib import Path

from harness.errors import HomeError, LogDamagedError
from harness.files.regular import create_private
from harness.store.limits import limit
from harness.store.opening import open_reading
from harness.store.reader import LogReader
from harness.words import printable

# Eight megabytes: between two of them a live run may write.
_PAGES_AT_ONCE = 2_000


def copy_log(source: Path, target: Path, run_id: str, name: str) -> None:
    """Copy the log at `source`, also of a live run, to the new file `target`, as the log of the run `run_id`
    called `name`. Both are read as untrusted files, and the copy is checked as a whole.

    Raises LogError when the source is no readable log, HomeError when the copy cannot be written.
    """
    with LogReader(source) as reader:
        reader.run()
    _back_up(source, target)
    with LogReader(target) as reader:  # Before anything is written: a foreign schema could have triggers.
        reader.check()
        reader.run()
        reader.extent()
    try:
        connection = sqlite3.connect(target, isolation_level=None)
        try:
            limit(connection)
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("UPDATE run SET run_id = ?, name = ?", (run_id, name))
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise HomeError(f"{target} cannot be written: {error}.") from None


def _back_up(source: Path, target: Path) -> None:
    create_private(target)
    copy = sqlite3.connect(target, isolation_level=None)
    try:
        opened = open_reading(source)
        try:
            opened.connection.backup(copy, pages=_PAGES_AT_ONCE)
        finally:
            opened.close()
    except sqlite3.Error as error:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            name = printable(str(source))
            raise LogDamagedError(f"{name} is damaged ({printable(str(error))}); copy it again.") from None
        raise HomeError(f"{target} cannot be written: {error}.") from None
    finally:
        copy.close()

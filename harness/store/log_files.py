"""Detection of changes that other programs make to the files of an open log, without opening them.

The process that writes a log must not open its files except through SQLite: closing any descriptor of such a
file releases SQLite's locks on it.
"""

import os
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple

from harness.store.uris import sqlite_uri

# A long log is checked in part; later damage is detected on reading.
_CHECK_S = 2.0
_OPCODES_PER_READING = 50_000


class _File(NamedTuple):
    """The status of one file; all None if it is missing."""

    device: int | None
    inode: int | None
    size_bytes: int | None
    modified_ns: int | None

    @classmethod
    def at(cls, path: str) -> "_File":
        try:
            status = os.stat(path)
        except OSError:
            return cls(None, None, None, None)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class LogFiles(NamedTuple):
    """The status of the log, its write-ahead log and the index of that at one moment."""

    log: _File
    wal: _File
    shm: _File

    @classmethod
    def at(cls, path: Path) -> "LogFiles":
        """Return the current status of the log at `path`."""
        name = os.fspath(path)  # Four times per second: creating paths takes as long as the system calls.
        return cls(_File.at(name), _File.at(f"{name}-wal"), _File.at(f"{name}-shm"))

    def are_same(self, now: "LogFiles") -> bool:
        """Return whether these are still the same files, with any content."""
        return all(before[:2] == after[:2] for before, after in zip(self, now, strict=True))

    def were_cut(self, now: "LogFiles") -> bool:
        """Return whether a file is shorter than the writer, which alone may truncate it, left it."""
        return any((after.size_bytes or 0) < (before.size_bytes or 0) for before, after in self._pairs(now))

    def were_written(self, now: "LogFiles") -> bool:
        """Return whether another program wrote to a file since the writer did."""
        return any(after.modified_ns != before.modified_ns for before, after in self._pairs(now))

    def _pairs(self, now: "LogFiles") -> list[tuple[_File, _File]]:
        return [(self.log, now.log), (self.wal, now.wal)]


def damage(path: Path) -> str | None:
    """Check the log at `path` with a separate connection; return SQLite's message, None without damage in the
    part that could be read in time."""
    ends_s = time.monotonic() + _CHECK_S
    connection = sqlite3.connect(sqlite_uri(path, "mode=ro"), uri=True, isolation_level=None)
    try:
        connection.set_progress_handler(lambda: time.monotonic() >= ends_s, _OPCODES_PER_READING)
        verdict: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError:  # Interrupted, or the disk does not respond: this is not damage.
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        connection.close()
    return None if verdict == "ok" else "database disk image is malformed"

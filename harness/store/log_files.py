"""What somebody else did to the files of an open log, seen without opening them.

In the process that writes a log its files must not be opened by hand: closing any descriptor of such a file
gives up SQLite's locks on it.
"""

import os
import sqlite3
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

# A long log is checked in part; what is damaged further on is noticed when it is read.
_CHECK_S = 2.0
_STEPS_PER_LOOK = 50_000


class _File(NamedTuple):
    """One file; all None where there is none."""

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
    """The log, its write-ahead log and that one's index, as they were at one moment."""

    log: _File
    wal: _File
    shm: _File

    @classmethod
    def at(cls, path: Path) -> "LogFiles":
        """The files of the log at `path` now."""
        name = os.fspath(path)  # Four times a second: making paths takes as long as asking for the files.
        return cls(_File.at(name), _File.at(f"{name}-wal"), _File.at(f"{name}-shm"))

    def are_same(self, now: "LogFiles") -> bool:
        """Whether these are still the same files, whatever was written to them."""
        return all(before[:2] == after[:2] for before, after in zip(self, now, strict=True))

    def were_cut(self, now: "LogFiles") -> bool:
        """Whether one is shorter than the writer, which alone may shorten it, left it."""
        return any((after.size_bytes or 0) < (before.size_bytes or 0) for before, after in self._pairs(now))

    def were_written(self, now: "LogFiles") -> bool:
        """Whether somebody wrote to one since the writer did."""
        return any(after.modified_ns != before.modified_ns for before, after in self._pairs(now))

    def _pairs(self, now: "LogFiles") -> list[tuple[_File, _File]]:
        return [(self.log, now.log), (self.wal, now.wal)]


def damage(path: Path) -> str | None:
    """What is wrong with the log at `path`, read from the disk by a connection of its own; None: nothing, as
    far as it could be read in time."""
    ends_s = time.monotonic() + _CHECK_S
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.set_progress_handler(lambda: time.monotonic() >= ends_s, _STEPS_PER_LOOK)
        answer: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError:  # Interrupted, or the disk does not answer: that is no damage.
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    finally:
        connection.close()
    return None if answer == "ok" else "database disk image is malformed"

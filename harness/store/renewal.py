"""Replaces a run's log when its files are damaged, deleted or replaced, with all rows that can be recovered.

The damaged files are renamed. There is a complete log at the log's path at every moment: first the old one,
then one with the run, its settings and its state, then one with all recovered rows.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness.store.appender import LogAppender, open_writing
from harness.store.run_record import RunRecord
from harness.store.salvage import Salvage, mend_first_page
from harness.store.uris import sqlite_uri

_COMPANIONS = ("-wal", "-journal")


class Renewal(NamedTuple):
    """The result of replacing a log."""

    # Steps that were written to the old file and could not be recovered.
    missing_steps: int
    # The new name of the old file in the run's folder; None: it was deleted.
    set_aside: str | None


def begin_anew(
    path: Path, appender: LogAppender, is_readable: bool, last_step: int, left_s: Callable[[], float]
) -> Renewal:
    """Replace the log of `appender`, which continues with the new one.

    `is_readable`: the open file is intact and only lost its name. `last_step` is the last step written. The
    recovery ends when no time is left. Raises sqlite3.Error, HomeError or OSError when no new log can be
    created; then nothing has changed, or `appender` has no open log and must be reopened at `path`.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        _create(draft, appender.record)
        if is_readable and _copy_open_log(appender, draft, left_s):
            set_aside = _set_aside(path, "replaced")
            os.replace(draft, path)
            appender.reopen(path)
            return Renewal(0, set_aside)
        set_aside = _set_aside(path, "replaced" if is_readable else "damaged")
        os.replace(draft, path)
        appender.discard()
        steps = 0
        if set_aside is not None and not is_readable:  # A replacement may be the log of another run.
            steps = _recover(path.with_name(set_aside), path, draft, appender.record, last_step, left_s)
        missing_steps = max(0, appender.steps_written - steps)
        appender.reopen(path)
        appender.steps_written = steps
        return Renewal(missing_steps, set_aside)
    finally:
        _remove(draft)


def _create(draft: Path, record: RunRecord) -> None:
    """Create a log at `draft` with only the run's own rows, as a single file."""
    _remove(draft)
    connection = open_writing(draft)
    try:
        connection.execute("BEGIN")
        record.write_to(connection)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = DELETE")
    finally:
        connection.close()


def _copy_open_log(appender: LogAppender, draft: Path, left_s: Callable[[], float]) -> bool:
    """Copy the open log of `appender`, whose file has no name, to `draft`; return whether that succeeded."""
    copy = draft.with_name(f"{draft.name}-copy")
    try:
        if not appender.back_up(copy, lambda: left_s() <= 0):
            return False
        os.replace(copy, draft)
    except sqlite3.Error:
        return False
    finally:
        _remove(copy)
    return True


def _set_aside(path: Path, what: str) -> str | None:
    """Rename the file at `path` and its companions; return the new name, None without a file."""
    if not os.path.lexists(path):
        for suffix in (*_COMPANIONS, "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return None
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.stem}.{what}-{number}{path.suffix}")):
        number += 1
    os.rename(path, aside)
    for suffix in _COMPANIONS:
        companion = path.with_name(path.name + suffix)
        if what == "replaced":  # It belongs to the previous file.
            companion.unlink(missing_ok=True)
        elif os.path.lexists(companion):
            os.rename(companion, aside.with_name(aside.name + suffix))
    # Without the index of the write-ahead log SQLite checks each of its frames and uses the intact ones.
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    return aside.name


def _recover(
    damaged: Path, path: Path, draft: Path, record: RunRecord, last_step: int, left_s: Callable[[], float]
) -> int:
    """Replace the log at `path` by one that also has the readable rows of `damaged`; return its steps."""
    try:
        shutil.copyfile(path, draft)
        mend_first_page(damaged, draft)
        connection = sqlite3.connect(sqlite_uri(draft, "mode=rw"), uri=True, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = MEMORY")
            connection.execute("PRAGMA synchronous = OFF")
            steps = Salvage(connection, left_s).copy_from(damaged, last_step)
            record.write_to(connection)
        finally:
            connection.close()
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except (sqlite3.Error, OSError):
        return 0
    finally:
        damaged.with_name(damaged.name + "-shm").unlink(missing_ok=True)
    return steps


def _remove(draft: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)

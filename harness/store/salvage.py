"""Copies the readable rows of a damaged log into a new one, within a given time.

SQLite copies ranges of rows by itself, so that training has the interpreter. An unreadable range is halved
until only the damaged rows are left out. Small tables come first, then steps, the newest first, then rollups:
when time runs out, old single steps are missing, but not the run's curve.
"""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness.store.rollups import LEVEL_STRIDE, LEVELS, SIZES, device_rollup_sql, step_rollup_sql
from harness.store.uris import sqlite_uri

_ROWS_AT_ONCE = 4_096
# A page has about as many steps; smaller ranges would not help.
_FEWEST_ROWS = 8
# After an unreadable range: this saves time when a whole part of the file is lost.
_FEWEST_ROWS_AFTER_LOSS = 512
# The assumed highest row when it cannot be read.
_ASSUMED_ROWS = 65_536
# Virtual machine steps of SQLite between two readings of the clock: about a millisecond.
_OPCODES_PER_READING = 50_000
_PAGE_BYTES = 4_096
_MAGIC = b"SQLite format 3\0"


class _Range(NamedTuple):
    first: int
    last: int


class Salvage:
    """One recovery, into a new log with its tables. `left_s` returns the remaining seconds."""

    def __init__(self, target: sqlite3.Connection, left_s: Callable[[], float]) -> None:
        self._target = target
        self._left_s = left_s

    def copy_from(self, damaged: Path, last_step: int) -> int:
        """Copy everything readable and return the number of steps. `last_step` is the last step written.

        Raises sqlite3.Error when the new log cannot be written, or nothing is readable.
        """
        target = self._target
        # Otherwise SQLite rejects a file that is shorter than its header says.
        target.execute("PRAGMA writable_schema = ON")
        target.execute("PRAGMA trusted_schema = OFF")
        target.execute("ATTACH ? AS damaged", (sqlite_uri(damaged, "mode=ro"),))
        target.set_progress_handler(lambda: self._left_s() <= 0, _OPCODES_PER_READING)
        try:
            self._copy_small_tables()
            return self._copy_steps(last_step)
        finally:
            target.set_progress_handler(None, 0)

    def _copy_small_tables(self) -> None:
        sql = "SELECT name, sql LIKE '%WITHOUT ROWID%' FROM main.sqlite_schema WHERE type = 'table'"
        present = {
            row[0] for row in self._target.execute("SELECT name FROM damaged.sqlite_schema").fetchall()
        }
        for table, is_clustered in self._target.execute(sql).fetchall():
            if table in _LARGE or table in _OWN or table not in present:
                continue
            if is_clustered:
                self._run(f"INSERT OR IGNORE INTO main.{table} SELECT * FROM damaged.{table}")
            else:
                self._copy(table, _Range(0, self._highest(table, _ASSUMED_ROWS)))
        devices = self._target.execute("SELECT device, max(seq) FROM main.device_samples GROUP BY device")
        for device, last in devices.fetchall():
            for level in range(1, LEVELS + 1):
                bounds = {"device": device, "first": 0, "end": last // SIZES[level]}
                self._run(device_rollup_sql(level), bounds)

    def _copy_steps(self, last_step: int) -> int:
        """Copy steps, the newest first, for half of the time; then compute the rollups."""
        last_step = max(last_step, self._highest("steps", 0))
        enough_s = self._left_s() / 2
        copied, first, is_after_loss = 0, 0, False
        for part in _parts_from_the_end(last_step):
            count = self._copy_part("steps", part, is_after_loss)
            is_after_loss, first = count is None, part.first
            copied += count or 0
            if self._left_s() < enough_s:
                break
        newest = self._target.execute("SELECT max(step) FROM main.steps").fetchone()[0]
        if newest is not None:
            self._make_rollups(first, newest)
        return copied

    def _make_rollups(self, first: int, newest: int) -> None:
        """Compute the rollups of the steps from `first` to `newest`, and copy those of earlier steps.

        They are not all copied, because a damaged page can end a range early without an error.
        """
        for level in range(1, LEVELS + 1):
            begin, end = -(-first // SIZES[level]), newest // SIZES[level]
            for start in range(begin, end, _ROWS_AT_ONCE):
                bounds = {"first": start, "end": min(start + _ROWS_AT_ONCE, end)}
                self._run(step_rollup_sql(level), bounds)
        for level in range(1, LEVELS + 1):
            offset = (level - 1) * LEVEL_STRIDE
            before = min(-(-first // SIZES[level]), newest // SIZES[level])
            if before:
                self._copy("step_rollups", _Range(-offset, before - 1 - offset))

    def _copy(self, table: str, rows: _Range) -> None:
        """Copy the readable rows of a range of row ids."""
        is_after_loss = False
        for part in _parts(rows):
            is_after_loss = self._copy_part(table, part, is_after_loss) is None

    def _copy_part(self, table: str, part: _Range, is_after_loss: bool) -> int | None:
        """Copy the readable rows of a part and return their number, None when nothing is readable.

        `is_after_loss`: the previous part was unreadable.
        """
        sql = f"INSERT OR IGNORE INTO main.{table} SELECT * FROM damaged.{table} WHERE rowid BETWEEN ? AND ?"
        fewest = _FEWEST_ROWS_AFTER_LOSS if is_after_loss else _FEWEST_ROWS
        waiting, failed = [part], list[_Range]()
        copied: int | None = None
        while waiting:
            rows = waiting.pop()
            count = self._run(sql, rows)
            if count is not None:
                copied = (copied or 0) + count
            elif rows.last - rows.first >= fewest and self._left_s() > 0:
                middle = (rows.first + rows.last) // 2
                waiting += [_Range(middle + 1, rows.last), _Range(rows.first, middle)]
            else:
                failed.append(rows)
        if not is_after_loss or copied is None:
            return copied
        return copied + sum(self._copy_part(table, rows, False) or 0 for rows in failed)

    def _run(self, sql: str, values: tuple[int, ...] | dict[str, int] = ()) -> int | None:
        """Run one statement in its own transaction; return the number of rows, None after damage or when the
        time is up."""
        if self._left_s() <= 0:
            return None
        try:
            return self._target.execute(sql, values).rowcount
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM):
                raise
            return None

    def _highest(self, table: str, otherwise: int) -> int:
        try:
            row = self._target.execute(f"SELECT max(rowid) FROM damaged.{table}").fetchone()
        except sqlite3.DatabaseError:
            return otherwise
        return int(row[0] or 0)


_LARGE = ("steps", "step_rollups", "device_rollups")
# Tables that a new log already has.
_OWN = ("run",)


def _parts(rows: _Range) -> Iterator[_Range]:
    for first in range(rows.first, rows.last + 1, _ROWS_AT_ONCE):
        yield _Range(first, min(first + _ROWS_AT_ONCE - 1, rows.last))


def _parts_from_the_end(last: int) -> Iterator[_Range]:
    for end in range(last, -1, -_ROWS_AT_ONCE):
        yield _Range(max(0, end - _ROWS_AT_ONCE + 1), end)


def mend_first_page(damaged: Path, fresh: Path) -> None:
    """Replace an invalid first page of `damaged` by that of `fresh`.

    Every log is created by the same statements, so the first page, which has the positions of the tables, is
    the same in all logs except for the file's size. Raises OSError.
    """
    with damaged.open("r+b") as file, fresh.open("rb") as source:
        if file.read(len(_MAGIC)) == _MAGIC:
            return
        page = bytearray(source.read(_PAGE_BYTES))
        pages = file.seek(0, 2) // _PAGE_BYTES
        page[28:32] = pages.to_bytes(4, "big")
        file.seek(0)
        file.write(page)

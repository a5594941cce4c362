"""Runs the queries of one log, and converts every failure to a LogError that names the file."""

import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from harness.errors import LogDamagedError, LogError, LogForeignError, LogMissingError
from harness.store.checked_rows import ValuesError, to_numbers, to_rows
from harness.store.limits import QUERY_LIMIT_S, Deadline, foreign_entry, limit
from harness.store.opening import Opened, open_reading
from harness.words import printable, span

Row = TypeVar("Row", bound=NamedTuple)
Read = TypeVar("Read")
# Of the placeholders in a query: by position ("?"), or by name (":device").
Values = tuple[Any, ...] | Mapping[str, Any]
_Rows = list[tuple[Any, ...]]

# Names of devices: the largest machines have about ten.
_MOST_TEXTS = 1_000
_DAMAGED_ADVICE = "copy the run's folder again from its source, or delete the run."


class Queries:
    """The read-only connection to one log, for one thread. Every method raises LogError.

    No cursor stays open after a query: an unfinished one would pin the write-ahead log.
    """

    def __init__(
        self, path: Path, query_limit_s: float = QUERY_LIMIT_S, total_limit_s: float = math.inf
    ) -> None:
        """Open the log. `query_limit_s` limits each query, `total_limit_s` all of them together."""
        self._path = path
        self.shown_path = printable(str(path))
        self._opened: Opened | None = None
        try:
            self._opened = open_reading(path)
            limit(self._opened.connection)
        except sqlite3.Error as error:
            self.close()
            raise self._translated(error) from None
        self._deadline = Deadline(self._opened.connection, query_limit_s, total_limit_s)

    def rows(self, row: type[Row], sql: str, values: Values = (), extra_columns: int = 0) -> list[Row]:
        """Return the rows of a query for the columns of `row`, without the `extra_columns` after them."""
        width = len(row._fields)
        if extra_columns:
            return self._read(lambda cursor: to_rows(row, (one[:width] for one in cursor)), sql, values)
        return self._read(lambda cursor: to_rows(row, cursor), sql, values)

    def numbered_rows(self, row: type[Row], sql: str, values: Values = ()) -> list[tuple[int, Row]]:
        """Like `rows`, for a query whose first column is the number of a row."""
        numbers: list[int] = []

        def without_number(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
            for number, *rest in cursor:
                numbers.append(number)
                yield tuple(rest)

        rows = self._read(lambda cursor: to_rows(row, without_number(cursor)), sql, values)
        return list(zip(numbers, rows, strict=True))

    def numbers(self, sql: str, values: Values = ()) -> _Rows:
        """Return the rows of a query whose columns are all numbers or NULL."""
        return self._read(to_numbers, sql, values)

    def texts(self, sql: str, values: Values = ()) -> list[str]:
        """Return the values of a query with one column of texts."""
        rows = self._read(lambda cursor: cursor.fetchmany(_MOST_TEXTS), sql, values)
        return [value for (value,) in rows if isinstance(value, str)]

    def check_schema(self) -> None:
        """Raise LogForeignError when the log has more than tables and indexes. Call this in the transaction
        that also reads the version."""
        entry = self._read(lambda cursor: foreign_entry(cursor.connection), "SELECT 1", ())
        if entry is not None:
            raise LogForeignError(
                f"{self.shown_path} is not a valid log: it contains {entry}; delete the run, or "
                "copy it again from its source."
            )

    def check_integrity(self) -> None:
        """Read the whole file, without a time limit, and raise LogDamagedError at the first error."""
        self._deadline.lift()
        verdict = " ".join(self.texts("PRAGMA integrity_check(1)"))
        if verdict != "ok":
            raise LogDamagedError(
                f"{self.shown_path} is damaged ({printable(' '.join(verdict.split()))}); {_DAMAGED_ADVICE}"
            )

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Have the queries of the context read the log as it is at the first one, whatever is written
        meanwhile. Keep it short: it pins the write-ahead log."""
        self.numbers("BEGIN")
        try:
            yield
        finally:
            self.numbers("ROLLBACK")

    def close(self) -> None:
        """Close the log. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _read(self, read: Callable[[sqlite3.Cursor], Read], sql: str, values: Values) -> Read:
        if self._opened is None:
            raise ValueError("the reader is closed")
        cursor = self._opened.connection.cursor()
        self._deadline.begin_query()
        try:
            return read(cursor.execute(sql, values))
        except sqlite3.Error as error:
            raise self._translated(error) from None
        except ValuesError as error:
            raise LogDamagedError(f"{self.shown_path} is damaged ({error}); {_DAMAGED_ADVICE}") from None
        except OverflowError:
            raise LogDamagedError(
                f"{self.shown_path} is damaged (a number is out of range); {_DAMAGED_ADVICE}"
            ) from None
        finally:
            cursor.close()

    def _translated(self, error: sqlite3.Error) -> LogError:
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
            return LogDamagedError(
                f"{self.shown_path} is damaged ({printable(str(error))}); {_DAMAGED_ADVICE}"
            )
        if code == sqlite3.SQLITE_INTERRUPT:
            return LogError(
                f"{self.shown_path} cannot be read: a query took longer than "
                f"{span(self._deadline.limit_s)}; try again when the disk is less busy."
            )
        if code == sqlite3.SQLITE_TOOBIG:
            return LogDamagedError(
                f"{self.shown_path} is damaged (a value is larger than any that Stepscope writes); "
                f"{_DAMAGED_ADVICE}"
            )
        if not self._path.exists():
            return LogMissingError(f"{self.shown_path} is missing; the run was moved or deleted.")
        return LogError(f"{self.shown_path} cannot be read: {printable(str(error))}.")

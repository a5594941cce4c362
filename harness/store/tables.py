"""The base class of readers of later tables, which return nothing for older logs."""

from typing import Any, ClassVar, NamedTuple, TypeVar

from harness.store.querying import Queries

TableRow = TypeVar("TableRow", bound=NamedTuple)


class Tables:
    """Some tables of one open log. Every method raises LogError as the reader's do."""

    # The first version of the log with these tables.
    since_version: ClassVar[int]

    def __init__(self, queries: Queries, version: int) -> None:
        self._queries = queries
        self._is_there = version >= self.since_version

    def _rows(self, row: type[TableRow], table: str, rest: str, *values: Any) -> list[TableRow]:
        """Return the rows of `table`; `rest` is the part of the query after its name."""
        if not self._is_there:
            return []
        fields: tuple[str, ...] = row._fields
        return self._queries.rows(row, f"SELECT {', '.join(fields)} FROM {table} {rest}", values)

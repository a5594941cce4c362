"""What the readers of a log's later tables share: in logs older than their tables they find nothing."""

from typing import Any, ClassVar, NamedTuple, TypeVar

from harness.store.querying import Queries

Found = TypeVar("Found", bound=NamedTuple)


class Tables:
    """Some tables of one open log. Every method raises LogError as the reader's do."""

    # The version of the log from which on it has these tables.
    since_version: ClassVar[int]

    def __init__(self, queries: Queries, version: int) -> None:
        self._queries = queries
        self._is_there = version >= self.since_version

    def _rows(self, row: type[Found], table: str, rest: str, *values: Any) -> list[Found]:
        """The rows of `table`; `rest` is the query behind its name."""
        if not self._is_there:
            return []
        fields: tuple[str, ...] = row._fields
        return self._queries.rows(row, f"SELECT {', '.join(fields)} FROM {table} {rest}", values)

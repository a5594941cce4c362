"""What the readers of a log's later tables share: in logs older than their tables they find nothing."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

Fetch = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]
"""Runs a query with its parameters."""
Found = TypeVar("Found", bound=NamedTuple)


class Tables:
    """Some tables of one open log. Every method raises LogError as the reader's do."""

    since_version: ClassVar[int]
    """The version of the log from which on it has these tables."""

    def __init__(self, fetch: Fetch, version: int) -> None:
        self._fetch = fetch
        self._is_there = version >= self.since_version

    def _rows(self, row: type[Found], table: str, rest: str, *values: Any) -> list[Found]:
        """The rows of `table`; `rest` is the query behind its name."""
        if not self._is_there:
            return []
        fields: tuple[str, ...] = row._fields
        return [
            row(*found) for found in self._fetch(f"SELECT {', '.join(fields)} FROM {table} {rest}", values)
        ]

"""Reads what a log says about Stepscope's own cost; in logs of older versions, which did not measure it,
finds nothing."""

from collections.abc import Callable
from typing import Any

from harness.own_cost_records import OwnCostRow, UnobservedRow

Fetch = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]
SINCE_VERSION = 6
"""The version of the log from which on it has these tables."""

_COST = f"SELECT {', '.join(OwnCostRow._fields)} FROM own_cost"
_UNOBSERVED = f"SELECT {', '.join(UnobservedRow._fields)} FROM unobserved_steps"


class OwnCostLog:
    """The own cost in one open log; `harness.store.reader.LogReader.own_cost` hands it out.

    Every method raises LogError as the reader's do.
    """

    def __init__(self, fetch: Fetch, version: int) -> None:
        self._fetch = fetch
        self._is_there = version >= SINCE_VERSION

    def latest(self) -> OwnCostRow | None:
        """What is known last; None while nothing is."""
        if not self._is_there:
            return None
        rows = self._fetch(f"{_COST} ORDER BY id DESC LIMIT 1", ())
        return OwnCostRow(*rows[0]) if rows else None

    def unobserved(self, first: int, last: int) -> list[UnobservedRow]:
        """The blocks of unobserved steps that reach into the steps from `first` to `last`, in order."""
        if not self._is_there:
            return []
        where = "WHERE last_step >= ? AND first_step <= ? ORDER BY first_step"
        return [UnobservedRow(*row) for row in self._fetch(f"{_UNOBSERVED} {where}", (first, last))]

"""Reads the profiles of a log; in logs of older versions, which had none, finds nothing."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from harness.profile_records import ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow

Fetch = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]
SINCE_VERSION = 5
"""The version of the log from which on it has these tables."""

Found = TypeVar("Found", bound=NamedTuple)


class ProfileLog:
    """The profiles of one open log; `harness.store.reader.LogReader.profiles` hands it out.

    Every method raises LogError as the reader's do.
    """

    def __init__(self, fetch: Fetch, version: int) -> None:
        self._fetch = fetch
        self._is_there = version >= SINCE_VERSION

    def stamp(self) -> tuple[int, ...]:
        """A token that changes whenever a profile was added."""
        if not self._is_there:
            return ()
        return self._fetch("SELECT coalesce(max(profile_id), 0) FROM profiles", ())[0]

    def all(self) -> list[ProfileRow]:
        """Every profile, in order, also those that failed."""
        return self._rows(ProfileRow, "profiles", "ORDER BY profile_id")

    def operators(self, profile_id: int) -> list[ProfileOpRow]:
        """The operators and kernels of a profile, most time of its own first."""
        return self._rows(ProfileOpRow, "profile_ops", "WHERE profile_id = ? ORDER BY rank", profile_id)

    def modules(self, profile_id: int) -> list[ProfileModuleRow]:
        """The modules of a profile in their phases, by path and phase."""
        order = "WHERE profile_id = ? ORDER BY module, phase"
        return self._rows(ProfileModuleRow, "profile_modules", order, profile_id)

    def stacks(self, profile_id: int) -> list[ProfileStackRow]:
        """The stacks of a profile, most time of its own first; empty unless they were asked for."""
        return self._rows(ProfileStackRow, "profile_stacks", "WHERE profile_id = ? ORDER BY rank", profile_id)

    def _rows(self, row: type[Found], table: str, rest: str, *values: Any) -> list[Found]:
        if not self._is_there:
            return []
        fields: tuple[str, ...] = row._fields
        return [
            row(*found) for found in self._fetch(f"SELECT {', '.join(fields)} FROM {table} {rest}", values)
        ]

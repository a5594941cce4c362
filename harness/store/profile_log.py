"""Reads the profiles of a log; logs of older versions have none, so results are empty."""

from harness.records.profile import ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow
from harness.store.tables import Tables

# Kinds by the names that logs before November 2026 have.
_RENAMED = {"normalisation": "normalization"}


class ProfileLog(Tables):
    """The profiles of one open log, `harness.store.reader.LogReader.profiles`.

    Every method raises LogError as the reader's do.
    """

    since_version = 5

    def stamp(self) -> tuple[int, ...]:
        """Return a token that changes when a profile is added."""
        if not self._is_there:
            return ()
        return self._queries.numbers("SELECT coalesce(max(profile_id), 0) FROM profiles", ())[0]

    def all(self) -> list[ProfileRow]:
        """Return all profiles, in order, including failed ones."""
        return self._rows(ProfileRow, "profiles", "ORDER BY profile_id")

    def operators(self, profile_id: int) -> list[ProfileOpRow]:
        """Return the operators and kernels of a profile, the most self time first."""
        rows = self._rows(ProfileOpRow, "profile_ops", "WHERE profile_id = ? ORDER BY rank", profile_id)
        return [row._replace(kind=_RENAMED.get(row.kind, row.kind)) for row in rows]

    def modules(self, profile_id: int) -> list[ProfileModuleRow]:
        """Return the modules of a profile, by path and phase."""
        order = "WHERE profile_id = ? ORDER BY module, phase"
        return self._rows(ProfileModuleRow, "profile_modules", order, profile_id)

    def stacks(self, profile_id: int) -> list[ProfileStackRow]:
        """Return the stacks of a profile, the most self time first; empty unless they were recorded."""
        return self._rows(ProfileStackRow, "profile_stacks", "WHERE profile_id = ? ORDER BY rank", profile_id)

"""Reads the profiles of a log; in logs of older versions, which had none, finds nothing."""

from harness.profile_records import ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow
from harness.store.tables import Tables


class ProfileLog(Tables):
    """The profiles of one open log; `harness.store.reader.LogReader.profiles` hands it out.

    Every method raises LogError as the reader's do.
    """

    since_version = 5

    def stamp(self) -> tuple[int, ...]:
        """A token that changes whenever a profile was added."""
        if not self._is_there:
            return ()
        return self._queries.numbers("SELECT coalesce(max(profile_id), 0) FROM profiles", ())[0]

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

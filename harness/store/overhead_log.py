"""Reads the overhead tables of a log; logs of older versions have none, so results are empty."""

from harness.records.overhead import OverheadRow, UnobservedRow
from harness.store.tables import Tables


class OverheadLog(Tables):
    """The overhead tables of one open log, `harness.store.reader.LogReader.overhead`.

    Every method raises LogError as the reader's do.
    """

    since_version = 6

    def latest(self) -> OverheadRow | None:
        """Return the newest estimate, None without any."""
        return next(iter(self._rows(OverheadRow, "own_cost", "ORDER BY id DESC LIMIT 1")), None)

    def unobserved(self, first: int, last: int) -> list[UnobservedRow]:
        """Return the blocks of unobserved steps that overlap the steps from `first` to `last`, in order."""
        where = "WHERE last_step >= ? AND first_step <= ? ORDER BY first_step"
        return self._rows(UnobservedRow, "unobserved_steps", where, first, last)

    def unobserved_extent(self) -> tuple[int | None, int]:
        """Return the last unobserved step, None without any, and their number."""
        if not self._is_there:
            return None, 0
        sql = "SELECT max(last_step), total(last_step - first_step + 1) FROM unobserved_steps"
        last, steps = self._queries.numbers(sql)[0]
        return last, int(steps)

    def unobserved_work(self) -> tuple[int | None, int | None]:
        """Return the samples and the tokens of all unobserved steps; None: not counted."""
        if not self._is_there:
            return None, None
        samples, tokens = self._queries.numbers("SELECT sum(samples), sum(tokens) FROM unobserved_steps")[0]
        return samples, tokens

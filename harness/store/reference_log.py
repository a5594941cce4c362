"""Reads the reference work of a log; logs of older versions have none, so results are empty."""

from harness.records.step_time import StepTime
from harness.store.tables import Tables

# Some 25 per second, for an hour.
_MOST = 100_000


class ReferenceLog(Tables):
    """The table of one open log, `harness.store.reader.LogReader.reference`.

    Every method raises LogError as the reader's do.
    """

    since_version = 7

    def steps(self, first: int, last: int) -> list[tuple[StepTime, int]]:
        """Return the steps from `first` to `last` after which the reference work ran, each with the
        duration of that work in ns, in order."""
        if not self._is_there:
            return []
        columns = ", ".join(f"steps.{name}" for name in StepTime._fields)
        sql = f"""SELECT took_ns, {columns} FROM reference_work CROSS JOIN steps USING (step)
            WHERE reference_work.step BETWEEN ? AND ? ORDER BY reference_work.step LIMIT {_MOST}"""
        return [
            (StepTime._make(step), took_ns) for took_ns, *step in self._queries.numbers(sql, (first, last))
        ]

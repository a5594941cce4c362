"""Reads the scalars and settings of a script's log; older logs have none, so results are empty."""

from typing import NamedTuple

from harness.records.floats import decode_float
from harness.records.script import DeclaredSetting, DeclaredSettingRow, ScalarRow, UnavailableSettingRow
from harness.store.tables import Tables

# From name to name through the key, without reading the values in between.
_NAMES = """WITH RECURSIVE names(name) AS (
    SELECT min(name) FROM scalars
    UNION ALL SELECT (SELECT min(name) FROM scalars WHERE scalars.name > names.name) FROM names
    WHERE names.name IS NOT NULL
) SELECT name FROM names WHERE name IS NOT NULL"""
_BUCKETS = """SELECT min(step), max(step), count(value), min(value), max(value), sum(value),
    sum(coalesce(value_state > 0, 0)) FROM scalars WHERE name = ? AND step BETWEEN ? AND ?
    GROUP BY step / ? ORDER BY 1"""


class ScalarBucket(NamedTuple):
    """The values of one scalar in some steps: the first and the last of them with a value, the number of
    finite values, their lowest, highest and sum (None without any), and the number of others."""

    first_step: int
    last_step: int
    values: int
    low: float | None
    high: float | None
    total: float | None
    not_finite: int


class ScriptLog(Tables):
    """The tables of one open log, `harness.store.reader.LogReader.script`.

    Every method raises LogError as the reader's do.
    """

    since_version = 8

    def scalar_names(self) -> list[str]:
        """Return the names of all scalars, in order."""
        return self._queries.texts(_NAMES) if self._is_there else []

    def scalars(self, name: str, first_step: int, last_step: int, max_points: int) -> list[ScalarBucket]:
        """Return the values of a scalar in a range of steps, in at most `max_points` + 1 buckets whose size
        is a power of two. With one step per bucket, these are the values themselves."""
        if not self._is_there or last_step < first_step:
            return []
        size = 1
        while (last_step - first_step) // size >= max_points:
            size *= 2
        rows = self._queries.numbers(_BUCKETS, (name, first_step, last_step, size))
        return [ScalarBucket._make(row) for row in rows]

    def scalar_extent(self, name: str) -> tuple[int, int] | None:
        """Return the first and the last step with a value of the scalar; None without any."""
        if not self._is_there:
            return None
        sql = """SELECT (SELECT min(step) FROM scalars WHERE name = ?),
            (SELECT max(step) FROM scalars WHERE name = ?)"""
        first, last = self._queries.numbers(sql, (name, name))[0]
        return None if first is None else (first, last)

    def last_scalar(self, name: str) -> tuple[int, float | None] | None:
        """Return the last step with a value of the scalar, and the value; None without any."""
        rows = self._rows(ScalarRow, "scalars", "WHERE name = ? ORDER BY step DESC LIMIT 1", name)
        return (rows[0].step, decode_float(rows[0].value, rows[0].value_state)) if rows else None

    def declared_settings(self) -> list[DeclaredSetting]:
        """Return the settings that the script declared, in the order of their names. An invalid declaration
        is left out."""
        settings = []
        for row in self._rows(DeclaredSettingRow, "declared_settings", "ORDER BY name LIMIT 1000"):
            try:
                settings.append(DeclaredSetting.from_row(row))
            except ValueError:
                continue
        return settings

    def unavailable_settings(self) -> dict[str, str]:
        """Return why the script cannot change a setting, by the setting's name. One that became available has
        no reason left."""
        rows = self._rows(UnavailableSettingRow, "unavailable_settings", "ORDER BY name LIMIT 1000")
        return {row.name: row.reason for row in rows if row.reason}

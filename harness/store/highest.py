"""The highest values of a run of any length in one statement.

Rollups contain the maximum of each bucket, and the parts of a maximum may overlap. So the query reads all
buckets of a level with a few hundred of them, and for the newest steps, which are not in that level yet, the
last buckets of every level below and the last steps.
"""

from collections.abc import Sequence

from harness.store.rollups import LEVEL_STRIDE, LEVELS, SIZES

_MOST_BUCKETS = 512


def highest_sql(last: int, columns: Sequence[str]) -> str:
    """Return a query for the maximum of each of `columns` in a run whose newest step is `last`.

    Without rollups, as in a log of another program, it covers only the newest steps.
    """
    top = next((level for level in range(1, LEVELS) if last // SIZES[level] < _MOST_BUCKETS), LEVELS)
    below = [_newest_of_level(level, last, columns) for level in range(top - 1, 0, -1)]
    tail = _maxima(columns, "") + f" FROM steps WHERE step >= {_begin(1, last)}"
    parts = " UNION ALL ".join([_of_level(top, 0, columns), *below, tail])
    return f"SELECT {', '.join(f'max({name})' for name in columns)} FROM ({parts})"


def _newest_of_level(level: int, last: int, columns: Sequence[str]) -> str:
    return _of_level(level, _begin(level + 1, last) // SIZES[level], columns)


def _of_level(level: int, first_bucket: int, columns: Sequence[str]) -> str:
    offset = (level - 1) * LEVEL_STRIDE
    span = f"id >= {first_bucket - offset} AND id < {LEVEL_STRIDE - offset}"
    return f"{_maxima(columns, '_max')} FROM step_rollups WHERE {span}"


def _maxima(columns: Sequence[str], suffix: str) -> str:
    return "SELECT " + ", ".join(f"max({name}{suffix}) AS {name}" for name in columns)


def _begin(level: int, last: int) -> int:
    """Return the first step of the last bucket of `level` that is certainly rolled up."""
    size: int = SIZES[level]
    return max(0, last // size - 1) * size

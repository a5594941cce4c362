"""Reads any range of a log as so many buckets, at a cost that does not depend on the run's length.

Bucket sizes are powers of two and buckets start at multiples of their size, so they stay where they are while
a run grows. Of one size alone there would be anything from half as many buckets as asked for to all of them:
so the older ones are of twice the size, as many of them as it takes. They are made of whole buckets of one
rollup level, and at the newest end of the levels below.

Rows are never changed after they were written, so a series that was read before is continued: what was read
stays, two buckets become one where the new layout has larger ones, and only newer rows are read.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from harness.store.rollups import (
    DEVICE_ROLLUPS,
    LEVEL_STRIDE,
    LEVELS,
    SIZES,
    STEP_ROLLUPS,
    Piece,
    Rollup,
    pieces,
)

# So many new rows are read one by one; more of them from rollups, from the beginning of their bucket on.
_MOST_NEW_ROWS = 256

# Runs a query with its parameters; every value it returns is a number or None.
Numbers = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]


class StepSeries(NamedTuple):
    """Buckets of steps or samples, one row each, in order; only buckets that hold something.

    `columns` names the entries of a row. First come `bucket` (the first step, or sample, that can be in it),
    `size` (how many can be), `rows` (how many are), `t_ns_first`, `t_ns_last` (their earliest and latest
    `t_ns`), for steps `samples_sum`, `tokens_sum` and `non_finite_sum` (steps whose loss was not finite), for
    samples `step_first` and `step_last`. Then for each plotted column `c`: `c_min`, `c_max`, `c_sum` and
    `c_count`, over the values that were measured (of the loss: the finite ones); the first three are None
    without any.
    """

    columns: tuple[str, ...]
    # The `size` of the oldest bucket, the largest; the newer ones may be half as large.
    bucket_size: int
    rows: list[tuple[Any, ...]]
    # Steps that were taken and have no row, as first and last: nobody observed them, so that the observers'
    # own cost could be told. Left empty where no bucket is so short that it could be missing for that.
    unobserved: tuple[tuple[int, int], ...] = ()
    # The first step, or sample, that the oldest bucket can hold.
    start: int = 0
    # Everything from `start` to before this number is in the buckets.
    end: int = 0

    def column(self, name: str) -> list[Any]:
        """One of `columns`, an entry a bucket."""
        index = self.columns.index(name)
        return [row[index] for row in self.rows]

    def mean(self, name: str) -> list[float | None]:
        """The mean of a plotted column (not one of `columns`: "step_ns", "loss"), an entry a bucket."""
        total, count = self.columns.index(f"{name}_sum"), self.columns.index(f"{name}_count")
        return [row[total] / row[count] if row[count] else None for row in self.rows]


class _Source(NamedTuple):
    """Where the rows of one level lie: a FROM clause with its fixed parameters, and a bucket's number."""

    table: str
    bucket: str
    condition: str
    parameters: tuple[Any, ...]


def _step_source(level: int) -> _Source:
    if level == 0:
        return _Source("steps", "step", "step >= ? AND step < ?", ())
    offset = (level - 1) * LEVEL_STRIDE
    return _Source("step_rollups", f"(id + {offset})", f"id >= ? - {offset} AND id < ? - {offset}", ())


def _device_source(device: str) -> Callable[[int], _Source]:
    def source(level: int) -> _Source:
        if level == 0:
            return _Source("device_samples", "seq", "device = ?3 AND seq >= ?1 AND seq < ?2", (device,))
        condition = f"device = ?3 AND level = {level} AND bucket >= ?1 AND bucket < ?2"
        return _Source("device_rollups", "bucket", condition, (device,))

    return source


class Span(NamedTuple):
    """The range [start, end), to be read as buckets of `size`, of which both are multiples."""

    start: int
    end: int
    size: int


def spans(first: int, last: int, max_points: int) -> list[Span]:
    """The range [first, last], widened to whole buckets, as exactly `max_points` of them, or one a step.

    One span, or two of which the older has buckets of twice the size. As `last` grows, two buckets at the
    seam become one, until none is left to join; the size is then twice what it was.
    """
    size = 1
    while last // size - first // size + 1 >= 2 * max_points:
        size *= 2
    begin, end = first // size, last // size + 1
    spare = end - begin - max_points
    if spare <= 0:
        return [Span(begin * size, end * size, size)]
    oldest = begin // 2
    seam = oldest + spare + begin % 2  # A first pair of which only one is in the range spares nothing.
    older, newer = Span(oldest * 2 * size, seam * 2 * size, size * 2), Span(seam * 2 * size, end * size, size)
    return [older, newer] if newer.start < newer.end else [older]


def step_series(
    fetch: Numbers,
    first: int,
    last: int,
    max_points: int,
    columns: Sequence[str] | None,
    before: StepSeries | None = None,
) -> StepSeries:
    """The buckets that hold the steps [first, last], widened to whole buckets. `before` is a series read from
    the same log earlier, to be continued where it can be."""
    wanted = tuple(columns) if columns is not None else STEP_ROLLUPS.spread
    newest = fetch("SELECT max(step) FROM steps", ())[0][0]
    view = _View(STEP_ROLLUPS, _step_source, wanted, -1 if newest is None else newest)
    return _series(fetch, view, first, last, max_points, before)


def device_series(
    fetch: Numbers,
    device: str,
    first: int,
    last: int,
    max_points: int,
    before: StepSeries | None = None,
) -> StepSeries:
    """The buckets that hold the samples `device` gave while the steps [first, last] were under way. `before`
    is a series of the same device read from the same log earlier."""
    found = fetch(
        "SELECT (SELECT min(seq) FROM device_samples WHERE device = ?1 AND step = "
        "(SELECT min(step) FROM device_samples WHERE device = ?1 AND step >= ?2)), "
        "(SELECT max(seq) FROM device_samples WHERE device = ?1 AND step = "
        "(SELECT max(step) FROM device_samples WHERE device = ?1 AND step <= ?3)), "
        "(SELECT max(seq) FROM device_samples WHERE device = ?1)",
        (device, first, last),
    )
    start, end, newest = found[0]
    if start is None or end is None or end < start:
        start, end = 0, -1
    spread = DEVICE_ROLLUPS.spread
    view = _View(DEVICE_ROLLUPS, _device_source(device), spread, -1 if newest is None else newest)
    return _series(fetch, view, start, end, max_points, before)


class _View(NamedTuple):
    """What is read: plotted `columns` of a table whose `newest` row has that number (-1: it has none)."""

    rollup: Rollup
    source: Callable[[int], _Source]
    columns: tuple[str, ...]
    newest: int


def _series(
    fetch: Numbers, view: _View, first: int, last: int, max_points: int, before: StepSeries | None
) -> StepSeries:
    unknown = [name for name in view.columns if name not in view.rollup.spread]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not among the columns kept: {', '.join(view.rollup.spread)}")
    parts, names = spans(first, last, max_points), _names(view.rollup, view.columns)
    end = min(parts[-1].end, view.newest + 1)
    rows, position = _carried(before, parts, names)
    level = 0
    if end - position > _MOST_NEW_ROWS:
        # Rollups begin where a bucket begins.
        level = LEVELS
        size = next((part.size for part in parts if position < part.end), parts[-1].size)
        position = position // size * size
        while rows and rows[-1][0] >= position:
            rows.pop()
    for part in parts:
        if position < part.end:
            clipped = Span(max(position, part.start), min(part.end, end), part.size)
            _read_buckets(fetch, view, clipped, level, rows)
    return StepSeries(names, parts[0].size, rows, start=parts[0].start, end=max(end, parts[0].start))


def _carried(
    before: StepSeries | None, parts: list[Span], names: tuple[str, ...]
) -> tuple[list[tuple[Any, ...]], int]:
    """The buckets of `parts` as far as `before` knows them, and the first number that it does not know."""
    start = parts[0].start
    if before is None or before.columns != names or not before.start <= start < before.end:
        return [], start
    rows: list[tuple[Any, ...]] = []
    at = 0
    for row in before.rows:
        bucket, size = row[:2]
        if bucket + size <= start:
            continue
        while at < len(parts) and bucket >= parts[at].end:
            at += 1
        if at == len(parts):
            break
        larger = parts[at].size
        if size > larger or bucket < start:
            return [], start
        widened = (bucket // larger * larger, larger, *row[2:])
        if rows and rows[-1][0] == widened[0]:
            rows[-1] = _merged(names, rows[-1], widened)
        else:
            rows.append(widened)
    return rows, min(before.end, parts[-1].end)


def _names(rollup: Rollup, columns: tuple[str, ...]) -> tuple[str, ...]:
    names = ["bucket", "size"]
    for piece in pieces(rollup, columns):
        names.append(piece.name)
        column = piece.name.removesuffix("_sum")
        if column in rollup.always and column != piece.name:
            names.append(f"{column}_count")
    return tuple(names)


def _read_buckets(
    fetch: Numbers, view: _View, span: Span, highest_level: int, rows: list[tuple[Any, ...]]
) -> None:
    """Append the buckets of `span` to `rows`: from the level below their size, `highest_level` at most, as
    far as it is rolled up, then from each lower level, and at last from plain rows. A bucket at a seam comes
    in parts."""
    position, end, size = span
    level = 0
    while level < highest_level and SIZES[level + 1] <= size:
        level += 1
    names = _names(view.rollup, view.columns)
    while position < end and level >= 0:
        unit = SIZES[level]
        at = view.source(level)
        low, high, reach = -(-position // unit), end // unit, end
        if level > 0:
            sql = f"SELECT max({at.bucket}) FROM {at.table} WHERE {at.condition}"
            done = fetch(sql, (low, high, *at.parameters))[0][0] if high > low else None
            reach = position if done is None else (done + 1) * unit
        if reach > position:
            sql = _select(view.rollup, at, level, size // unit, view.columns)
            part = fetch(sql, (low, reach // unit, *at.parameters))
            part = [(row[0] * size, size, *row[1:]) for row in part]
            if rows and part and rows[-1][0] == part[0][0]:
                rows[-1] = _merged(names, rows[-1], part.pop(0))
            rows += part
            position = reach
        level -= 1


def _select(rollup: Rollup, at: _Source, level: int, ratio: int, columns: tuple[str, ...]) -> str:
    """The statement for buckets of `ratio` buckets of `level` each; 1 needs no aggregation."""
    group = at.bucket if ratio == 1 else f"{at.bucket} / {ratio}"
    made = []
    for piece in pieces(rollup, columns):
        made.append(_expression(piece, level, ratio))
        column = piece.name.removesuffix("_sum")
        if column in rollup.always and column != piece.name:
            made.append(made[0])
    sql = f"SELECT {group}, {', '.join(made)} FROM {at.table} WHERE {at.condition}"
    return f"{sql} ORDER BY {group}" if ratio == 1 else f"{sql} GROUP BY {group} ORDER BY {group}"


def _expression(piece: Piece, level: int, ratio: int) -> str:
    if level == 0:
        return piece.of_row if ratio == 1 else piece.of_rows
    return piece.name if ratio == 1 else piece.of_buckets


def _merged(names: tuple[str, ...], one: tuple[Any, ...], two: tuple[Any, ...]) -> tuple[Any, ...]:
    """One bucket out of two parts of it."""
    return tuple(_merge(name, a, b) for name, a, b in zip(names, one, two, strict=True))


def _merge(name: str, a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    if name in ("bucket", "size"):
        return a
    if name.endswith(("_min", "_first")):
        return min(a, b)
    if name.endswith(("_max", "_last")):
        return max(a, b)
    return a + b

"""Reads any range of a log as a given number of buckets, in a time that does not depend on the run's length.

Bucket sizes are powers of two and buckets start at multiples of their size, so they do not move while a run
grows. With a single size, the number of buckets would vary between half and all of the requested number; so
the older buckets have twice the size, as many of them as needed. They are computed from whole buckets of one
rollup level, and at the newest end from the levels below.

Rows never change, so an earlier series can be continued: its buckets are reused, two are merged into one
where the new layout has larger ones, and only newer rows are read.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from harness.store.querying import Values
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

# Up to this number of new rows is read one by one; more are read from rollups, from the start of their
# bucket.
_MOST_NEW_ROWS = 256

# Runs a query with its parameters; every value it returns is a number or None.
Numbers = Callable[[str, Values], list[tuple[Any, ...]]]


class StepSeries(NamedTuple):
    """Non-empty buckets of steps or samples, one row each, in order.

    `columns` names the entries of a row. First come `bucket` (the first possible step or sample), `size` (the
    number of possible ones), `rows` (the number of existing ones), `t_ns_first`, `t_ns_last` (their earliest
    and latest `t_ns`), for steps `samples_sum`, `tokens_sum` and `non_finite_sum` (steps with a non-finite
    loss), for samples `step_first` and `step_last`. Then for each plotted column `c`: `c_min`, `c_max`,
    `c_sum` and `c_count`, over the measured values (of the loss: the finite ones); the first three are None
    without any.
    """

    columns: tuple[str, ...]
    # The `size` of the oldest bucket; newer ones may be half as large.
    bucket_size: int
    rows: list[tuple[Any, ...]]
    # Blocks of steps without a row, as first and last: they ran unobserved, to measure the overhead. Empty
    # when buckets are so long that none can be missing because of that.
    unobserved: tuple[tuple[int, int], ...] = ()
    # The first possible step or sample of the oldest bucket.
    start: int = 0
    # Everything from `start` to before this number is in the buckets.
    end: int = 0

    def column(self, name: str) -> list[Any]:
        """Return one of `columns`, an entry per bucket."""
        index = self.columns.index(name)
        return [row[index] for row in self.rows]

    def mean(self, name: str) -> list[float | None]:
        """Return the mean of a plotted column ("step_ns", "loss"), an entry per bucket."""
        total, count = self.columns.index(f"{name}_sum"), self.columns.index(f"{name}_count")
        return [row[total] / row[count] if row[count] else None for row in self.rows]


class _LevelSource(NamedTuple):
    """The rows of one level: a FROM clause, the values of its placeholders after those of the two bounds, and
    the expression of a bucket."""

    table: str
    bucket: str
    condition: str
    parameters: tuple[Any, ...]


def _step_source(level: int) -> _LevelSource:
    if level == 0:
        return _LevelSource("steps", "step", "step >= ? AND step < ?", ())
    offset = (level - 1) * LEVEL_STRIDE
    return _LevelSource("step_rollups", f"(id + {offset})", f"id >= ? - {offset} AND id < ? - {offset}", ())


def _device_source(device: str) -> Callable[[int], _LevelSource]:
    def source(level: int) -> _LevelSource:
        if level == 0:
            return _LevelSource("device_samples", "seq", "seq >= ? AND seq < ? AND device = ?", (device,))
        condition = f"level = {level} AND bucket >= ? AND bucket < ? AND device = ?"
        return _LevelSource("device_rollups", "bucket", condition, (device,))

    return source


class Span(NamedTuple):
    """The range [start, end) in buckets of `size`, of which both are multiples."""

    start: int
    end: int
    size: int


def spans(first: int, last: int, max_points: int) -> list[Span]:
    """Return [first, last], widened to whole buckets, as exactly `max_points` of them, or one per step.

    The result is one span, or two of which the older has buckets of twice the size. As `last` grows, two
    buckets at the seam are merged into one, until all are merged and the size has doubled.
    """
    size = 1
    while last // size - first // size + 1 >= 2 * max_points:
        size *= 2
    begin, end = first // size, last // size + 1
    spare = end - begin - max_points
    if spare <= 0:
        return [Span(begin * size, end * size, size)]
    oldest = begin // 2
    seam = oldest + spare + begin % 2  # A first pair with only one bucket in the range saves none.
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
    """Return the buckets of the steps [first, last], widened to whole buckets. `before` is an earlier series
    of the same log, which is continued if possible."""
    plotted = tuple(columns) if columns is not None else STEP_ROLLUPS.spread
    newest = fetch("SELECT max(step) FROM steps", ())[0][0]
    view = _View(STEP_ROLLUPS, _step_source, plotted, -1 if newest is None else newest)
    return _series(fetch, view, first, last, max_points, before)


def device_series(
    fetch: Numbers,
    device: str,
    first: int,
    last: int,
    max_points: int,
    before: StepSeries | None = None,
) -> StepSeries:
    """Return the buckets of the samples of `device` during the steps [first, last]. `before` is an earlier
    series of the same device and log."""
    bounds = fetch(
        "SELECT (SELECT min(seq) FROM device_samples WHERE device = :device AND step = "
        "(SELECT min(step) FROM device_samples WHERE device = :device AND step >= :first)), "
        "(SELECT max(seq) FROM device_samples WHERE device = :device AND step = "
        "(SELECT max(step) FROM device_samples WHERE device = :device AND step <= :last)), "
        "(SELECT max(seq) FROM device_samples WHERE device = :device)",
        {"device": device, "first": first, "last": last},
    )
    start, end, newest = bounds[0]
    if start is None or end is None or end < start:
        start, end = 0, -1
    spread = DEVICE_ROLLUPS.spread
    view = _View(DEVICE_ROLLUPS, _device_source(device), spread, -1 if newest is None else newest)
    return _series(fetch, view, start, end, max_points, before)


class _View(NamedTuple):
    """The plotted `columns` to read of a table; `newest` is the number of its newest row (-1: none)."""

    rollup: Rollup
    source: Callable[[int], _LevelSource]
    columns: tuple[str, ...]
    newest: int


def _series(
    fetch: Numbers, view: _View, first: int, last: int, max_points: int, before: StepSeries | None
) -> StepSeries:
    unknown = [name for name in view.columns if name not in view.rollup.spread]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a plotted column: {', '.join(view.rollup.spread)}")
    parts, names = spans(first, last, max_points), _names(view.rollup, view.columns)
    end = min(parts[-1].end, view.newest + 1)
    rows, position = _continued(before, parts, names)
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


def _continued(
    before: StepSeries | None, parts: list[Span], names: tuple[str, ...]
) -> tuple[list[tuple[Any, ...]], int]:
    """Return the buckets of `parts` that `before` has, and the first number that it does not have."""
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
    """Append the buckets of `span` to `rows`: from the highest suitable level, at most `highest_level`, as
    far as it is rolled up, then from each lower level, finally from single rows. A bucket at a seam comes in
    parts."""
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


def _select(rollup: Rollup, at: _LevelSource, level: int, ratio: int, columns: tuple[str, ...]) -> str:
    """Return the statement for buckets of `ratio` buckets of `level` each; 1 needs no aggregation."""
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
    """Merge two parts of one bucket."""
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

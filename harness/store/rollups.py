"""Rollups: the aggregates of each bucket of rows, and the SQL that computes level k from level k-1.

A bucket of level 1 has 8 rows, each further level four times as many: level 1 is sparse, to be small on disk,
and a small factor leaves little to aggregate for a chart. A bucket is rolled up once all of its rows are
written, so a chart reads whole buckets of one level, and at the newest end a few of the levels below.
"""

from typing import NamedTuple

FIRST, FACTOR = 8, 4
# The highest level's buckets have about two million rows each: a thousand of them are two billion steps.
LEVELS = 10
# Rows per bucket of each level; level 0 are the rows themselves.
SIZES = (1, *(FIRST * FACTOR**level for level in range(LEVELS)))
LEVEL_STRIDE = 2**40


class Rollup(NamedTuple):
    """The aggregated columns of one table.

    `key` numbers its rows. A bucket has the minimum, maximum, sum and count of `spread` columns, the sum of
    `summed` ones (name, expression over a row), and the first and last value of `places`, which grow with the
    key. `always` columns are never NULL, so that their count is the number of rows.
    """

    key: str
    spread: tuple[str, ...]
    always: frozenset[str]
    summed: tuple[tuple[str, str], ...] = ()
    places: tuple[str, ...] = ()


STEP_ROLLUPS = Rollup(
    key="step",
    spread=(
        "step_ns",
        "data_wait_ns",
        "h2d_ns",
        "forward_ns",
        "backward_ns",
        "optimizer_ns",
        "device_step_ns",
        "device_h2d_ns",
        "device_forward_ns",
        "device_backward_ns",
        "device_optimizer_ns",
        "device_gap_ns",
        "loss",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "inactive_split_bytes",
        "rss_bytes",
    ),
    always=frozenset({"step_ns", "data_wait_ns", "h2d_ns", "forward_ns", "backward_ns", "optimizer_ns"}),
    summed=(("samples", "samples"), ("tokens", "tokens"), ("non_finite", "coalesce(loss_state > 0, 0)")),
    places=("t_ns",),
)

DEVICE_ROLLUPS = Rollup(
    key="seq",
    spread=(
        "util_pct",
        "memory_util_pct",
        "memory_used_bytes",
        "power_w",
        "temperature_c",
        "sm_clock_mhz",
    ),
    always=frozenset(),
    places=("t_ns", "step"),
)


class Piece(NamedTuple):
    """One column of a bucket: its name, and its expression over one row, several rows, and smaller
    buckets."""

    name: str
    of_row: str
    of_rows: str
    of_buckets: str


def pieces(rollup: Rollup, columns: tuple[str, ...] | None = None) -> list[Piece]:
    """Return the columns of a bucket, optionally only those of `columns`. Sums are floats: exact up to 2^53,
    without overflow, and SQLite stores integral ones as integers."""
    columns_of_bucket = [Piece("rows", "1", "count(*)", "sum(rows)")]
    for name in rollup.places:
        columns_of_bucket.append(Piece(f"{name}_first", name, f"min({name})", f"min({name}_first)"))
        columns_of_bucket.append(Piece(f"{name}_last", name, f"max({name})", f"max({name}_last)"))
    for name, expression in rollup.summed:
        columns_of_bucket.append(Piece(f"{name}_sum", expression, f"sum({expression})", f"sum({name}_sum)"))
    for name in rollup.spread if columns is None else columns:
        columns_of_bucket.append(Piece(f"{name}_min", name, f"min({name})", f"min({name}_min)"))
        columns_of_bucket.append(Piece(f"{name}_max", name, f"max({name})", f"max({name}_max)"))
        columns_of_bucket.append(
            Piece(f"{name}_sum", f"{name} + 0.0", f"sum({name} + 0.0)", f"sum({name}_sum)")
        )
        if name not in rollup.always:
            columns_of_bucket.append(
                Piece(f"{name}_count", f"{name} IS NOT NULL", f"count({name})", f"sum({name}_count)")
            )
    return columns_of_bucket


_WHAT = {
    "first": "the first of the bucket",
    "last": "the last of the bucket",
    "min": "the least",
    "max": "the most",
    "sum": "the sum",
    "count": "how many were measured",
}


def rollup_columns(rollup: Rollup) -> str:
    """Return the columns' declarations, for CREATE TABLE."""
    lines = []
    for piece in pieces(rollup):
        column, _, how = piece.name.rpartition("_")
        if piece.name == "rows":
            lines.append(f"    rows INTEGER NOT NULL, -- how many {rollup.key}s the bucket holds")
            continue
        is_float = (how == "sum" and column in rollup.spread) or (
            how in ("min", "max") and not column.endswith(("_ns", "_bytes"))
        )
        must = " NOT NULL" if how in ("first", "last", "count") or column in rollup.always else ""
        lines.append(f"    {piece.name} {'REAL' if is_float else 'INTEGER'}{must}, -- {column}: {_WHAT[how]}")
    return "\n".join(lines)


def step_rollup_sql(level: int, absent: frozenset[str] = frozenset()) -> str:
    """Return the SQL for the buckets [:first, :end) of `level` (≥ 1) from the level below. `absent` are
    plotted columns that are NULL in every step: aggregating them would take half of the time on a CPU."""
    made = {}
    for piece in pieces(STEP_ROLLUPS):
        column, _, how = piece.name.rpartition("_")
        if column not in absent:
            made[piece.name] = piece.of_rows if level == 1 else piece.of_buckets
        elif how == "count":
            made[piece.name] = "0"
    names, values = ", ".join(made), ", ".join(made.values())
    if level == 1:
        return (
            f"INSERT INTO step_rollups (id, {names}) SELECT step / {FIRST}, {values} FROM steps "
            f"WHERE step >= :first * {FIRST} AND step < :end * {FIRST} GROUP BY step / {FIRST}"
        )
    below = (level - 2) * LEVEL_STRIDE
    bucket = f"(id + {below}) / {FACTOR}"
    return (
        f"INSERT INTO step_rollups (id, {names}) SELECT {bucket} - {below + LEVEL_STRIDE}, {values} "
        f"FROM step_rollups WHERE id >= :first * {FACTOR} - {below} AND id < :end * {FACTOR} - {below} "
        f"GROUP BY {bucket}"
    )


def device_rollup_sql(level: int) -> str:
    """Return the SQL for the buckets [:first, :end) of `level` (≥ 1) of :device from the level below."""
    names = ", ".join(piece.name for piece in pieces(DEVICE_ROLLUPS))
    if level == 1:
        made = ", ".join(piece.of_rows for piece in pieces(DEVICE_ROLLUPS))
        source, place, where, factor = "device_samples", "seq", "", FIRST
    else:
        made = ", ".join(piece.of_buckets for piece in pieces(DEVICE_ROLLUPS))
        source, place, factor = "device_rollups", "bucket", FACTOR
        where = f"AND level = {level - 1} "
    return (
        f"INSERT INTO device_rollups (device, level, bucket, {names}) "
        f"SELECT device, {level}, {place} / {factor}, {made} FROM {source} WHERE device = :device {where}"
        f"AND {place} >= :first * {factor} AND {place} < :end * {factor} GROUP BY {place} / {factor}"
    )

"""Buckets of steps or device samples as numpy columns.

Arrays are in base units (bytes, nanoseconds, percent); missing is NaN, which draws as a gap, never as zero.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Band(NamedTuple):
    """One column of buckets: minimum, mean and maximum of each; NaN where nothing was measured."""

    low: Array
    mean: Array
    high: Array

    @property
    def is_empty(self) -> bool:
        """True if nothing was measured."""
        return not bool(np.isfinite(self.mean).any())


class BucketTable(NamedTuple):
    """Buckets in order. `step` is the middle of each bucket, `size` the most steps in a bucket."""

    step: Array
    size: int
    bands: Mapping[str, Band]
    # Number of buckets, without the separators of gaps.
    buckets: int

    def band(self, name: str) -> Band:
        """Return the column `name`; all NaN if it was not read."""
        nothing = np.full(len(self.step), np.nan)
        return self.bands.get(name, Band(nothing, nothing, nothing))


EMPTY = BucketTable(np.empty(0), 1, {}, 0)


def of_steps(
    columns: Sequence[str],
    size: int,
    rows: Sequence[Sequence[Any]],
    unobserved: Sequence[tuple[int, int]] = (),
) -> BucketTable:
    """Build buckets of steps from the rows of a log's reader. A missing bucket becomes one of NaN, so lines
    break, except where all of its steps were `unobserved` (first and last step of each block)."""
    if not rows:
        return EMPTY._replace(size=size)
    table = np.array(rows, dtype=np.float64)
    at = {name: index for index, name in enumerate(columns)}
    ends = table[:, at["bucket"]] + table[:, at["size"]]
    holes = np.flatnonzero(table[1:, at["bucket"]] > ends[:-1])
    if unobserved and len(holes):
        begun, over = ends[holes], table[holes + 1, at["bucket"]]
        covered = [(begun >= first) & (over <= last + 1) for first, last in unobserved]
        holes = holes[~np.logical_or.reduce(covered)]
    if len(holes):
        after = ends[holes]
        table = np.insert(table, holes + 1, np.nan, axis=0)
        table[holes + 1 + np.arange(len(holes)), at["bucket"]] = after
    filled = np.nan_to_num(table[:, at["rows"]], nan=1.0)
    step = table[:, at["bucket"]] + (filled - 1) / 2
    return BucketTable(step, size, _bands(table, at), len(rows))


def of_samples(columns: Sequence[str], size: int, rows: Sequence[Sequence[Any]]) -> BucketTable:
    """Build buckets of device samples, placed at the steps during which they were taken."""
    if not rows:
        return EMPTY._replace(size=size)
    table = np.array(rows, dtype=np.float64)
    at = {name: index for index, name in enumerate(columns)}
    step = (table[:, at["step_first"]] + table[:, at["step_last"]]) / 2
    return BucketTable(step, size, _bands(table, at), len(rows))


def _bands(table: Array, at: Mapping[str, int]) -> dict[str, Band]:
    names = [name.removesuffix("_min") for name in at if name.endswith("_min")]
    return {name: _band(table, at, name) for name in names}


def _band(table: Array, at: Mapping[str, int], name: str) -> Band:
    number = table[:, at[f"{name}_count"]]
    mean = np.full(len(table), np.nan)
    np.divide(table[:, at[f"{name}_sum"]], number, out=mean, where=number > 0)
    return Band(table[:, at[f"{name}_min"]], mean, table[:, at[f"{name}_max"]])


def joined(frame: BucketTable, values: Array) -> tuple[Array, Array]:
    """Return `frame.step` and `values` for a line that joins readings: buckets without one are left out if at
    most a tenth of the range shown lies between two readings. Memory is not read at every step, and less
    often the larger the CPU's heap is. Longer gaps, and buckets missing from the log, still break the line.
    """
    is_read = np.isfinite(values)
    if is_read.all() or not is_read.any():
        return frame.step, values
    is_missing = np.logical_and.reduce([np.isnan(band.mean) for band in frame.bands.values()])
    at = np.flatnonzero(is_read)
    before = np.append(-len(values), at)[np.cumsum(is_read)]
    after = np.append(at, 2 * len(values))[np.cumsum(is_read) - is_read]
    holes = np.cumsum(is_missing)
    spans_hole = holes[np.minimum(after, len(values) - 1)] > holes[np.maximum(before, 0)]
    is_short = (after - before - 1 <= max(len(values) // 10, 1)) & ~spans_hole
    keep = is_read | ~is_short
    return frame.step[keep], values[keep]


def tail(values: Array, count: int) -> list[float | None]:
    """Return the last `count` of `values` for a sparkline, to four digits, None for NaN."""
    return [sparkpoint(float(value)) for value in values[-count:]]


def sparkpoint(value: float | None) -> float | None:
    """Return a value to four digits; None if it is missing or not finite."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.4g}")

"""The numbers that a script logged, in buckets of steps that retain the lowest and the highest value."""

from collections.abc import Sequence
from typing import NamedTuple

from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.store.script_log import ScalarBucket, ScriptLog

# More are read only once a person selects them.
DEFAULT_SCALARS = 3
MOST_SCALARS = 8
# Buckets per scalar, as many as of steps.
_MAX_BUCKETS = 480
# Values arrive this many steps late at most: they are read from the device without waiting.
_LATE_STEPS = 1_000


class ScalarSeries(NamedTuple):
    """One scalar in the steps from `first` to `last`, in buckets that start at multiples of `size`."""

    name: str
    first: int
    last: int
    size: int
    buckets: Sequence[ScalarBucket]


def default_scalars(names: Sequence[str]) -> list[str]:
    """Return the scalars to show before a person selects some. The loss has a panel of its own."""
    return [name for name in names if name != "loss"][:DEFAULT_SCALARS]


def losses_first(names: Sequence[str]) -> list[str]:
    """Return the scalars to show first of a run that has no other panels: its losses before others."""
    return sorted(names, key=lambda name: "loss" not in name.lower())[:DEFAULT_SCALARS]


def read_scalars(
    log: ScriptLog, names: Sequence[str], first: int, last: int, before: Sequence[ScalarSeries] = ()
) -> list[ScalarSeries]:
    """Read the scalars `names` of the steps from `first` to `last`. `before` are earlier series of the same
    log, which are continued if possible. Raises LogError."""
    series_by_name = {series.name: series for series in before}
    return [_read(log, name, first, last, series_by_name.get(name)) for name in names]


def names_of_run(run: RunFolder) -> list[str]:
    """Return the names of the scalars in a run's log. Raises LogError."""
    with LogReader(run.log) as reader:
        return reader.script.scalar_names()


def read_run(run: RunFolder, names: Sequence[str]) -> list[ScalarSeries]:
    """Read the scalars `names` of a run over all of their steps. Raises LogError."""
    with LogReader(run.log) as reader:
        return read_all(reader.script, names)


def read_all(log: ScriptLog, names: Sequence[str]) -> list[ScalarSeries]:
    """Read the scalars `names` over all of their steps. Raises LogError."""
    extents = [extent for name in names if (extent := log.scalar_extent(name)) is not None]
    if not extents:
        return []
    return read_scalars(log, names, min(low for low, _ in extents), max(high for _, high in extents))


def _read(log: ScriptLog, name: str, first: int, last: int, before: ScalarSeries | None) -> ScalarSeries:
    size = 1
    while (last - first) // size >= _MAX_BUCKETS:
        size *= 2
    start, buckets = first, list[ScalarBucket]()
    if before is not None and before.first == first and before.size <= size and before.last <= last:
        start = max(first, min(last - size, before.last - _LATE_STEPS) // size * size)
        buckets = [bucket for bucket in _widened(before.buckets, size) if bucket.first_step < start]
    fresh = log.scalars(name, start, last, (last - start) // size + 1)
    return ScalarSeries(name, first, last, size, [*buckets, *fresh])


def _widened(buckets: Sequence[ScalarBucket], size: int) -> list[ScalarBucket]:
    """Return `buckets` merged into larger ones, which start at multiples of `size`."""
    wide: list[ScalarBucket] = []
    for bucket in buckets:
        if wide and wide[-1].first_step // size == bucket.first_step // size:
            wide[-1] = _merged(wide[-1], bucket)
        else:
            wide.append(bucket)
    return wide


def _merged(one: ScalarBucket, two: ScalarBucket) -> ScalarBucket:
    lows = [value for value in (one.low, two.low) if value is not None]
    highs = [value for value in (one.high, two.high) if value is not None]
    totals = [value for value in (one.total, two.total) if value is not None]
    return ScalarBucket(
        one.first_step,
        two.last_step,
        one.values + two.values,
        min(lows, default=None),
        max(highs, default=None),
        sum(totals) if totals else None,
        one.not_finite + two.not_finite,
    )

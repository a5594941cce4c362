"""Readings of memory among the rows of steps. Pure functions."""

from collections.abc import Sequence

from harness.records.run import StepRow


def newest_reading(rows: Sequence[StepRow]) -> StepRow | None:
    """Return the newest of `rows`, in order, that has the memory of live tensors: not every step is read."""
    return next((row for row in reversed(rows) if row.allocated_bytes is not None), None)


def newest_level(rows: Sequence[StepRow]) -> int | None:
    """Return the bytes allocated at the end of the newest of `rows`, in order, in which they were read."""
    reading = newest_reading(rows)
    return None if reading is None else reading.allocated_bytes

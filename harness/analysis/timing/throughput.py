"""Samples trained on over the time of steps. Pure functions."""

from collections.abc import Iterable

from harness.records.run import StepRow


def samples_per_s(rows: Iterable[StepRow]) -> float | None:
    """Return the samples per second of the steps with a known number of samples; None without any. An unknown
    number, as some scripts have, is 0 in the log."""
    sized = [row for row in rows if row.samples]
    elapsed_ns = sum(row.step_ns for row in sized)
    return 1e9 * sum(row.samples for row in sized) / elapsed_ns if elapsed_ns > 0 else None

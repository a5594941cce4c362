"""By how much recording makes a step slower, as snapshots and profiles measure it."""

# Recording only adds work: below this the steps differ by more than what it adds. Chosen, not measured.
_LEAST_RATIO = 0.9
UNKNOWN = "slower by an unknown amount: the steps differ by more than recording adds"


def slowdown_of(ratio: float | None) -> float | None:
    """Return the `ratio` of a recorded step to one before it; None where that does not show the slowdown."""
    return None if ratio is None or ratio < _LEAST_RATIO else ratio

"""The number of processes of a run, as given in the shell."""

from harness.errors import UsageError
from harness.records.ranks import MOST_RANKS


def check_ranks(ranks: int) -> None:
    """Raise UsageError for a number of processes that no run can have."""
    if not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"--nproc cannot be {ranks}; it takes a number of processes from 1 to {MOST_RANKS}.")

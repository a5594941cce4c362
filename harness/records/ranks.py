"""Records of a run that several processes train together."""

from typing import NamedTuple

# The most processes of one run on one machine.
MOST_RANKS = 1024


class RankPlace(NamedTuple):
    """The place of one process among those that train together, in the words of torchrun."""

    rank: int = 0
    # Among the processes of the same machine.
    local_rank: int = 0
    # The number of processes.
    size: int = 1
    # Those of them on the same machine, whose ranks follow each other.
    local_size: int = 1

    @property
    def first_rank(self) -> int:
        """The rank of the first process on this machine."""
        return self.rank - self.local_rank


# A training of one process.
ALONE = RankPlace()


class RankEnd(NamedTuple):
    """The exit code of one rank as its parent received it; negative: the signal."""

    rank: int
    returncode: int

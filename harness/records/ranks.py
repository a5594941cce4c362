"""Records of a run that several processes train together."""

from typing import NamedTuple

# The most processes of one run on one machine.
MOST_RANKS = 1024


class RankPart(NamedTuple):
    """The processes of a run on one machine: their number, and the first of their ranks, which follow each
    other."""

    ranks: int = 1
    first_rank: int = 0
    # Of a run over several machines, each of which has a run of its own: the id that these have in common,
    # and the number of processes on all machines.
    group_id: str | None = None
    size: int | None = None

    @property
    def is_alone(self) -> bool:
        """True for the one process of a run."""
        return self.ranks == 1 and self.group_id is None


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

    @property
    def is_on_several_machines(self) -> bool:
        """True when some processes are on other machines."""
        return self.local_size < self.size

    def part(self, group_id: str | None) -> RankPart:
        """Return the processes of this machine; `group_id` None: there are no others."""
        return RankPart(self.local_size, self.first_rank, group_id, None if group_id is None else self.size)


# A training of one process.
ALONE = RankPlace()


class RankEnd(NamedTuple):
    """The exit code of one rank as its parent received it; negative: the signal."""

    rank: int
    returncode: int

"""The ranks of a run side by side: the state of each, its phases, and which of them the others wait for."""

import time
from typing import NamedTuple

from harness.analysis.ranks.states import RankFacts
from harness.analysis.ranks.stragglers import RankComparison, compare_ranks
from harness.analysis.timing.phases import ClockTimes, analyze
from harness.store.folder import RunFolder
from harness.supervisor.ranks import read_rank_steps, read_ranks


class RanksView(NamedTuple):
    """The ranks of one run. `comparison` is None before they have enough steps in common."""

    facts: list[RankFacts]
    comparison: RankComparison | None
    # By rank, of its newest steps; on the device's clock where it has one.
    phases: dict[int, ClockTimes]


def rank_count(folder: RunFolder) -> int:
    """Return the number of processes that the run was started with."""
    return folder.request().ranks


def read(folder: RunFolder) -> RanksView:
    """Read the newest steps of all ranks. Logs that cannot be read are left out."""
    steps = read_rank_steps(folder)
    timings = {rank: analyze(rows) for rank, rows in steps.items()}
    phases = {rank: timing.device or timing.cpu for rank, timing in timings.items()}
    return RanksView(
        read_ranks(folder, time.time()),
        compare_ranks(steps),
        {rank: times for rank, times in phases.items() if times is not None},
    )

"""The ranks of a run side by side: the state of each, its phases, and which of them the others wait for."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from harness import words
from harness.analysis.ranks.states import RankFacts
from harness.analysis.ranks.stragglers import RankComparison, compare_ranks
from harness.analysis.timing.phases import ClockTimes, analyze
from harness.records.ranks import RankPart
from harness.store.folder import RunFolder, RunRequest
from harness.supervisor.ranks import parts_of, read_rank_steps, read_ranks


class RanksView(NamedTuple):
    """The ranks of one run. `comparison` is None before they have enough steps in common."""

    facts: list[RankFacts]
    comparison: RankComparison | None
    # By rank, of its newest steps; on the device's clock where it has one.
    phases: dict[int, ClockTimes]
    # Which ranks are in which run, of a run over several machines; "" of others.
    machines: str = ""


def has_ranks(folder: RunFolder) -> bool:
    """Return whether the run was started with several processes, here or on several machines."""
    return not folder.request().part.is_alone


def read(folder: RunFolder) -> RanksView:
    """Read the newest steps of all ranks, of all machines with a run in the home. Logs that cannot be read
    are left out."""
    parts = parts_of(folder)
    steps = read_rank_steps(parts)
    timings = {rank: analyze(rows) for rank, rows in steps.items()}
    phases = {rank: timing.device or timing.cpu for rank, timing in timings.items()}
    return RanksView(
        read_ranks(parts, time.time()),
        compare_ranks(steps),
        {rank: times for rank, times in phases.items() if times is not None},
        _machines_sentence([part.request() for part in parts]),
    )


def _machines_sentence(requests: Sequence[RunRequest]) -> str:
    """Return which ranks are in which run, of a run over several machines, and how the missing ones come
    here; "" for a run on one machine."""
    size = requests[0].part.size
    if size is None:
        return ""
    runs = ", ".join(f"{_ranks(request.part)} in {request.name!r}" for request in requests)
    missing = size - sum(request.part.ranks for request in requests)
    if missing <= 0:
        return f"The {size} ranks are on {words.plural(len(requests), 'machine')}: {runs}."
    return (
        f"Of {size} ranks, {missing} are on other machines, in runs of their own there, which can be "
        f"brought here: stepscope import FOLDER. Shown: {runs}."
    )


def _ranks(part: RankPart) -> str:
    last = part.first_rank + part.ranks - 1
    return f"rank {last}" if part.ranks == 1 else f"ranks {part.first_rank} to {last}"

"""The ranks of a run side by side: the state of each, its phases, and which of them the others wait for."""

import time
from typing import NamedTuple

from harness import words
from harness.analysis.ranks.states import RankFacts
from harness.analysis.ranks.stragglers import RankComparison, compare_ranks
from harness.analysis.timing.phases import ClockTimes, analyze
from harness.store.folder import RunFolder, RunRequest
from harness.supervisor.ranks import parts_of, read_all_ranks, read_rank_steps


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
    request = folder.request()
    return request.ranks > 1 or request.group_id is not None


def read(folder: RunFolder) -> RanksView:
    """Read the newest steps of all ranks, of all machines whose runs are in the home. Logs that cannot be
    read are left out."""
    steps = read_rank_steps(folder)
    timings = {rank: analyze(rows) for rank, rows in steps.items()}
    phases = {rank: timing.device or timing.cpu for rank, timing in timings.items()}
    return RanksView(
        read_all_ranks(folder, time.time()),
        compare_ranks(steps),
        {rank: times for rank, times in phases.items() if times is not None},
        machines_sentence(folder),
    )


def machines_sentence(folder: RunFolder) -> str:
    """Return which ranks are in which run, of a run over several machines, and how the missing ones come
    here; "" for a run on one machine."""
    size = folder.request().size
    if folder.request().group_id is None or size is None:
        return ""
    parts = [part.request() for part in parts_of(folder)]
    runs = ", ".join(f"{_ranks(part)} in {part.name!r}" for part in parts)
    missing = size - sum(part.ranks for part in parts)
    if not missing:
        return f"The {size} ranks are on {words.plural(len(parts), 'machine')}: {runs}."
    return (
        f"Of {size} ranks, {missing} are on other machines, in runs of their own there, which can be "
        f"brought here: stepscope import FOLDER. Shown: {runs}."
    )


def _ranks(part: RunRequest) -> str:
    last = part.first_rank + part.ranks - 1
    return f"rank {last}" if part.ranks == 1 else f"ranks {part.first_rank} to {last}"

"""Runs of several processes in the shell: their number, and what each rank does."""

from collections.abc import Sequence
from typing import Any

from harness import words
from harness.analysis.ranks.states import RankFacts
from harness.analysis.ranks.stragglers import RankComparison, RankTimes
from harness.errors import UsageError
from harness.records.ranks import MOST_RANKS


def check_ranks(ranks: int) -> None:
    """Raise UsageError for a number of processes that no run can have."""
    if not 1 <= ranks <= MOST_RANKS:
        raise UsageError(f"--nproc cannot be {ranks}; it takes a number of processes from 1 to {MOST_RANKS}.")


def rank_facts(ranks: Sequence[RankFacts], comparison: RankComparison | None) -> list[tuple[str, str]]:
    """Return the state and the times of each rank, and which of them the others wait for."""
    times = {} if comparison is None else {rank.rank: rank for rank in comparison.ranks}
    hosts = {rank.host for rank in ranks if rank.host}
    facts = [
        (
            f"rank {rank.rank} on {rank.host}" if len(hosts) > 1 and rank.host else f"rank {rank.rank}",
            f"{rank.sentence}{_times(times.get(rank.rank))}",
        )
        for rank in ranks
    ]
    if comparison is None:
        return facts
    if comparison.all_reduce_ns is not None:
        duration = words.duration(comparison.all_reduce_ns)
        facts.append(("all-reduce", f"{duration} after the gradients of the last rank."))
    return [*facts, ("waiting", comparison.sentence)]


def comparison_json(comparison: RankComparison | None) -> dict[str, Any] | None:
    """Return the comparison of the ranks as JSON values, without those of each step."""
    if comparison is None:
        return None
    facts = comparison._asdict()
    del facts["step_numbers"], facts["late_ns"]
    return facts | {
        "ranks": [rank._asdict() for rank in comparison.ranks],
        "straggler": None if comparison.straggler is None else comparison.straggler._asdict(),
        "sentence": comparison.sentence,
    }


def _times(times: RankTimes | None) -> str:
    if times is None:
        return ""
    own, waiting = words.duration(times.own_ns), words.duration(times.waiting_ns)
    peak = words.size(times.peak_allocated_bytes)
    return f" Own time {own} per step, waits {waiting} for others at least; peak {peak}."

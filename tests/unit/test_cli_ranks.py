"""The lines of `stepscope show` about the ranks of a run."""

from harness.analysis.ranks.states import RankFacts
from harness.analysis.ranks.stragglers import compare_ranks
from harness.cli.ranks import comparison_json, rank_facts
from tests.rank_steps import MS, steps_of_ranks


def test_each_rank_has_its_times_and_the_late_one_is_named() -> None:
    rows = steps_of_ranks(2, has_waits=True, rank=1, column="backward_ns", by_ns=2 * MS)
    comparison = compare_ranks(rows)
    facts = dict(rank_facts([RankFacts(rank) for rank in rows], comparison))
    assert list(facts) == ["rank 0", "rank 1", "all-reduce", "waiting"]
    assert "waits 2.0 ms for others" in facts["rank 0"]
    assert facts["all-reduce"] == "500 µs after the gradients of the last rank."
    assert facts["waiting"].startswith("Rank 1 is late in backward by 2.0 ms of each step")
    values = comparison_json(comparison)
    assert values is not None
    assert values["straggler"]["part"] == "backward"


def test_an_all_reduce_that_is_not_measured_has_no_line() -> None:
    rows = steps_of_ranks(2)
    facts = rank_facts([RankFacts(rank) for rank in rows], compare_ranks(rows))
    assert [name for name, _ in facts] == ["rank 0", "rank 1", "waiting"]

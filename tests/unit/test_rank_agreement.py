"""All ranks carry out a command before the same step, or none does."""

import random

import pytest

from harness.ranks.agreement import Pace
from tests.rank_factories import ranks_that_train


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [2, pytest.param(3, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
def test_every_command_takes_effect_before_the_same_step_on_all_ranks(size: int) -> None:
    seed = random.randrange(10**6)
    sent = [f"c{number}" for number in range(20)]
    ranks = ranks_that_train(size, len(sent), 600, Pace(0.03, 2.0), 0.004, 0.02, seed)
    assert all(rank.applied == ranks[0].applied for rank in ranks), seed
    applied, repeated = [name for name, _ in ranks[0].applied], ranks[0].repeated
    assert sorted(applied) == sorted(sent), seed
    # One that a rank answered too late on a busy machine, so that it was proposed again, is later.
    assert len(repeated) < len(sent) / 2, seed
    in_order = [name for name in sent if name not in repeated]
    assert [name for name in applied if name not in repeated] == in_order, seed


@pytest.mark.slow
def test_ranks_that_answer_too_late_carry_nothing_out_alone() -> None:
    """Proposals reach a rank later than the others are ready to wait, so that many are rejected."""
    seed = random.randrange(10**6)
    ranks = ranks_that_train(3, 10, 1200, Pace(0.001, 0.002), 0.002, 0.03, seed)
    assert all(rank.applied == ranks[0].applied for rank in ranks), seed
    rejected, applied = ({name for name, _ in rows} for rows in (ranks[0].context.answers, ranks[0].applied))
    assert rejected, seed
    assert not rejected & applied, seed

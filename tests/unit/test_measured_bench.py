"""The truth that measured effects are checked with, see `tests.bench.measured_runs`."""

import random
from math import log
from statistics import median

import pytest

from tests.bench.measured_runs import log_ratios


def _begin_times_ns(share: float, steps: int, spikes: float) -> list[int]:
    """Steps of about a millisecond, 40 that are longer by `share` and 40 that are not in turns, some of which
    last many times as long."""
    chance = random.Random(17)
    times_ns = [0]
    for step in range(steps):
        step_ns = 1e6 * chance.uniform(1.0, 1.05) * (1 + share * (step // 40 % 2 == 0))
        times_ns.append(times_ns[-1] + round(step_ns * (8 if chance.random() < spikes else 1)))
    return times_ns


@pytest.mark.parametrize("share", [-0.02, 0.0, 0.02])
def test_the_truth_is_that_of_whole_steps_also_beside_another_process(share: float) -> None:
    ratios = log_ratios(_begin_times_ns(share, 6_000, spikes=0.3))
    assert len(ratios) == 75
    assert median(ratios) == pytest.approx(log(1 + share), abs=0.0015)


def test_without_two_stretches_there_is_no_ratio() -> None:
    assert log_ratios(_begin_times_ns(0.02, 60, spikes=0.0)) == []

"""Test the steps left where inputs grow: the memory left falls ever faster."""

import random

import pytest

from harness.analysis.leak.approach import Approach

LIMIT = 800 * 2**20


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bend", [0, 200, 900])
def test_the_change_of_the_rate_counts(bend: int, seed: int) -> None:
    """Holes of growing batches and a leak beside them, read now and then, mostly in the middle of steps."""
    chance = random.Random(seed)

    def used(step: int) -> float:
        return 100_000 * step + bend * step**2 / 2

    end = next(step for step in range(100_000) if used(step) > LIMIT)
    approach, step = Approach(), 1
    while step < end // 2:
        left = int(LIMIT - used(step) - chance.uniform(0, 4 * 2**20))
        approach.add(step, left)
        step += chance.randint(1, 8)
    said = approach.steps_left(left)
    assert said is not None
    assert (end - step) / 1.5 < said < (end - step) * 1.5


def test_memory_that_does_not_fall_has_no_end() -> None:
    approach = Approach()
    assert approach.steps_left(LIMIT) is None
    for step in range(1, 200):
        approach.add(step, LIMIT - step % 7)
    assert approach.steps_left(LIMIT) is None

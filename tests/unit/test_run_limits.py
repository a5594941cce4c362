"""A run ends at its limit of steps or of seconds."""

import pytest

from harness.records.run import RunState
from harness.watch.steps import Steps
from tests.train_factories import Watched


@pytest.mark.parametrize(("most", "message"), [(1, "Took its one step."), (3, "Took all 3 steps.")])
def test_the_run_finishes_after_its_steps(most: int, message: str) -> None:
    watched = Watched(max_steps=most)
    assert [watched.controller.proceed(step) for step in range(1, most + 2)] == [True] * most + [False]
    assert watched.controller.outcome == (RunState.FINISHED, message)


def test_the_run_finishes_after_its_time_counted_from_its_first_step() -> None:
    watched = Watched(max_seconds=2.5)
    watched.clock.now_ns = 2_499_999_999
    assert watched.controller.proceed(1)
    watched.clock.now_ns = 2_500_000_000
    assert not watched.controller.proceed(2)
    assert watched.controller.outcome == (RunState.FINISHED, "Reached the limit of 2.5 s.")


def test_a_run_that_ranks_end_together_goes_on_after_its_time_is_reported_once() -> None:
    messages: list[str] = []
    watched = Watched(max_seconds=2.5)
    steps = Steps(watched.instruments, watched.workload, end_in_time=messages.append)
    watched.clock.now_ns = 2_500_000_000
    assert [steps.proceed(step) for step in (1, 2, 3)] == [True] * 3
    assert messages == ["Reached the limit of 2.5 s."]
    assert steps.outcome is None


def test_time_spent_building_the_model_does_not_count() -> None:
    watched = Watched(max_seconds=1)
    watched.clock.now_ns = 10**12
    assert Steps(watched.instruments, watched.workload).proceed(1)

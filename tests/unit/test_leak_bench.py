"""A part of the evaluation of the leak detector, so that it cannot rot; the whole is `tests.bench leak`."""

import pytest

from harness.records.memory import LeakSeries
from tests.bench.figures import all_met
from tests.bench.leak import SEED, TUNING_SEEDS, of_series
from tests.bench.leak_runs import plans
from tests.bench.leak_series import FAMILIES, cases, judged
from tests.bench.oom_time_series import Lengths, calls, patterned_run


@pytest.mark.slow
@pytest.mark.parametrize("each", [4, pytest.param(8, marks=pytest.mark.long)])
def test_on_series_it_was_not_tuned_on_the_detector_is_as_right_as_promised(each: int) -> None:
    outcomes = [judged(case) for case in cases(each * len(FAMILIES), SEED)]
    assert all_met(of_series(outcomes))


def test_what_is_told_is_of_other_series_than_those_it_was_tuned_on() -> None:
    assert SEED not in TUNING_SEEDS


def test_half_of_the_series_leak_and_all_kinds_are_there() -> None:
    result = list(cases(2 * len(FAMILIES), SEED))
    assert sum(case.slope > 0 for case in result) == len(FAMILIES)
    assert {case.name for case in result} == set(FAMILIES)


def test_half_of_the_real_runs_leak() -> None:
    result = list(plans(17, 17))
    assert sum(plan.leaks is not None for plan in result) == 17
    assert len({plan.settings.get("inject") for plan in result}) == 8


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(Lengths)))
def test_steps_that_differ_are_never_called_a_leak_and_with_one_they_are(number: int) -> None:
    healthy, leaking = patterned_run(3, number), patterned_run(3, number + len(Lengths))
    live = LeakSeries.ALLOCATED
    assert not any(row.series == live for row in calls(healthy._replace(collected_bytes=0), 1_500))
    assert any(row.series == live for row in calls(leaking._replace(leaked_bytes=2**18), 1_500))

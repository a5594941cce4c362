"""The quick part of `make faults`: the promises that can be held within seconds, with few cases each."""

from collections.abc import Iterator

import pytest

from tests.faults.scenario import Bench, Scenario
from tests.faults.table import SCENARIOS, measure

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_SEED = 1


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with Bench(tmp_path_factory.mktemp("faults"), True, _SEED) as made:
        yield made


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.long] if one.is_long else [])
        for one in SCENARIOS
        if one.is_in_tests
    ],
)
def test_the_promise_holds(scenario: Scenario, bench: Bench) -> None:
    row = measure(scenario, bench)
    assert not row.broken, row.line
    if not row.is_measured:
        pytest.skip(row.measured)

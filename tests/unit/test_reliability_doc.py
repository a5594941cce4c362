"""docs/reliability.md says of each fault what the code that measures it says."""

from pathlib import Path

from tests.faults.scenario import Bench, Measurement, Scenario, UnmeasurableError
from tests.faults.table import SCENARIOS, Row, measure, page, read_rows

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def _fails(_bench: Bench) -> Measurement:
    return Measurement("never seen", ("one way", "another"))


def _breaks_down(_bench: Bench) -> Measurement:
    raise TimeoutError("it hung")


def _cannot(_bench: Bench) -> Measurement:
    raise UnmeasurableError("no disk | here")


def _row(function: object, folder: Path) -> Row:
    scenario = Scenario("a-name", "A fault.", "A promise.", function)  # type: ignore[arg-type]  # any of the above
    with Bench(folder, True, 1) as bench:
        return measure(scenario, bench)


def test_the_page_has_every_scenario_with_its_fault_and_its_promise() -> None:
    written = [row[:3] for row in read_rows(PAGE.read_text(encoding="utf-8"))]
    assert written == [(one.name, one.fault, one.promise) for one in SCENARIOS]
    assert len({name for name, _, _ in written}) == len(written)


def test_a_broken_promise_is_written_as_one(tmp_path: Path) -> None:
    ((_, _, _, measured),) = read_rows(page([_row(_fails, tmp_path)], 1, 60, "abc"))
    assert measured == "**Broken** in 2 ways: one way; another"
    ((_, _, _, measured),) = read_rows(page([_row(_breaks_down, tmp_path)], 1, 60, "abc"))
    assert measured == "**Broken** in 1 way: TimeoutError: it hung"


def test_what_was_not_measured_is_written_with_its_reason(tmp_path: Path) -> None:
    row = _row(_cannot, tmp_path)
    assert not row.is_measured
    ((_, _, _, measured),) = read_rows(page([row], 1, 60, "abc"))
    assert measured == "not measured here: no disk | here"

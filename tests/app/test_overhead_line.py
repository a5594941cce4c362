"""The line on the Profiler page that says what Stepscope itself costs the run."""

import time

from harness.records.overhead import OverheadRow
from harness.settings import Settings
from harness.store.appender import LogAppender
from harness.store.home import Home
from tests.app.conftest import Open, Write, texts
from tests.store_factories import a_run, a_settings_row, steps

COST = OverheadRow(5, 60, 0, 8, 700_000, 9_000, 6_000, 12_000, "Adds 9.0 µs to a step of 700.0 µs.")


def test_the_page_says_what_stepscope_costs_the_run_and_how_that_is_known(
    home: Home, open_page: Open
) -> None:
    folder = home.create("told", Settings(), time.time_ns())
    with LogAppender(folder.log, a_run(folder.run_id, "told")) as log:
        log.append(steps(1, 60), [a_settings_row(), COST])
    app = open_page("profiler", run=folder.run_id)
    assert not app.exception
    (line,) = [caption for caption in app.caption if "Overhead." in caption.value]
    assert "Adds 9.0 µs" in line.value.replace("\\", "")
    assert "at most 2 % of all" in line.help


def test_a_simulated_run_costs_nothing(demo: Write, open_page: Open) -> None:
    assert "Overhead." not in texts(open_page("profiler", run=demo("steady", 200).run_id))

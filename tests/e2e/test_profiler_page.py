"""The Profiler page in a browser: a run that goes on, two settings side by side, and any screen."""

import re
from collections.abc import Iterator

import pytest

from harness.analysis.effect import LENGTHS_S
from harness.demo import write
from harness.records.run import RunState
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from tests.e2e.serving import Dashboard, end
from tests.e2e.tab import Tab

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def going(dashboard: Dashboard) -> Iterator[RunFolder]:
    """A real run whose loader is slow on purpose."""
    folder = dashboard.begin("going")
    yield folder
    end(folder)


@pytest.fixture(scope="module")
def changed(dashboard: Dashboard) -> RunFolder:
    return write("amp", dashboard.home, steps=2_000)


def test_a_run_that_goes_on_gets_its_verdict_and_its_figures_tick(tab: Tab, going: RunFolder) -> None:
    tab.open("profiler", run=going.run_id)
    tab.page.get_by_text("Input-bound.").wait_for()
    line = tab.page.get_by_text(re.compile(r"Steps \d.* sum to the step"))
    line.wait_for()
    before = line.inner_text()
    tab.until(line.inner_text, lambda text: text != before)
    covered = re.search(r"cover ([\d.]+) % of the wall time", line.inner_text())
    assert covered is not None
    assert float(covered[1]) >= 90.0
    tab.until(lambda: tab.card("flops"), lambda text: text.endswith("FLOP/s"))
    assert tab.card("mfu") == "n/a"
    tab.key("profiler_phases").locator(".ss-plot[data-ready=true]").wait_for()


@pytest.mark.long
def test_advice_is_applied_with_one_click_and_says_what_could_be_observed(
    tab: Tab, dashboard: Dashboard
) -> None:
    folder = dashboard.begin("starved")
    tab.open("profiler", run=folder.run_id)
    card = tab.key("advice_input_bound")
    card.get_by_text(re.compile("less time per sample")).wait_for()
    card.get_by_text(re.compile("waiting for the loader.* with 0 loader workers")).wait_for()
    tab.until(lambda: _trained_s(folder), lambda seconds: seconds > LENGTHS_S[0] + 1, limit_s=60)
    card.get_by_role("button", name=re.compile("Apply")).first.click()
    panel = tab.key("advice")
    panel.get_by_text(re.compile(r"applied at step \d")).first.wait_for()
    # With two workers every other step waits for the loader, so that no quantile may have changed; on a busy
    # machine the verdict may be that it is too noisy to compare.
    panel.get_by_text(re.compile("(step|throughput) .* → |on each side")).first.wait_for()
    end(folder)


def _trained_s(folder: RunFolder) -> float:
    with LogReader(folder.log) as reader:
        return reader.last_steps(1)[-1].t_ns / 1e9


@pytest.mark.long
def test_a_run_that_ends_stops_ticking_and_keeps_its_figures(tab: Tab, dashboard: Dashboard) -> None:
    folder = dashboard.begin("short", max_steps=60)
    tab.open("profiler", run=folder.run_id)
    dashboard.wait_for(folder, RunState.FINISHED)
    tab.badge("finished", within="profiler_header").wait_for()
    tab.page.get_by_text(re.compile("Steps 1 to 60")).wait_for()


@pytest.mark.long
def test_two_versions_of_the_settings_are_chosen_and_compared(tab: Tab, changed: RunFolder) -> None:
    tab.open("profiler", run=changed.run_id)
    tab.key("profiler_spread").locator(".ss-plot[data-ready=true]").wait_for()
    for key, name in (("timing_range", "settings 2"), ("timing_against", "settings 1")):
        tab.key(key).locator("input").click()
        tab.page.get_by_role("option", name=re.compile(f"^{name}:")).click()
    tab.page.get_by_text(re.compile(r"Observed: a step takes 69.* under settings 1")).wait_for()
    tab.page.get_by_text("Compute-bound.").wait_for()


@pytest.mark.long
def test_the_page_fits_the_screen(phone: Tab, changed: RunFolder) -> None:
    phone.open("profiler", run=changed.run_id)
    phone.key("profiler_spread").locator(".ss-plot[data-ready=true]").wait_for()
    phone.expect_to_fit_all_screens("profiler")

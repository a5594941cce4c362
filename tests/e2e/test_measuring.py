"""A setting is measured from the Live page over a real run, and the measurement is ended from it."""

import pytest
from playwright.sync_api import expect

from harness.store.folder import RunFolder
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab

pytestmark = pytest.mark.browser

_LIMIT_MS = 90_000
_BLOCKS = "plot.layout.shapes.filter(shape => shape.type === 'rect').length"


@pytest.fixture(scope="module")
def run(dashboard: Dashboard) -> RunFolder:
    return dashboard.begin("measured", slow_loader_ms=25.0)


def _begin(tab: Tab, pairs: int) -> None:
    tab.open_form("measure_amp_bar", "measure_form")
    field = tab.key("measure_pairs").locator("input")
    field.fill(str(pairs))
    field.press("Enter")
    tab.button("measure").click()
    expect(tab.key("measuring")).to_contain_text("Measuring AMP off → bf16", timeout=_LIMIT_MS)


@pytest.mark.long
def test_a_measurement_is_followed_and_ended_with_what_it_has(tab: Tab, run: RunFolder) -> None:
    tab.watch(run.run_id)
    tab.wait_for_steps(10)
    _begin(tab, 100)
    expect(tab.choice("set_amp", "AMP off")).to_be_checked()
    expect(tab.key("measuring")).to_contain_text("left", timeout=_LIMIT_MS)
    tab.until(lambda: tab.plot(_BLOCKS), lambda blocks: blocks >= 2)
    tab.button("measure_end").click()
    expect(tab.key("measured").last).to_contain_text("Stopped by dashboard", timeout=_LIMIT_MS)
    expect(tab.key("measuring")).to_have_count(0)
    expect(tab.choice("set_amp", "AMP off")).to_be_checked()
    tab.expect_to_fit_all_screens("measured")


@pytest.mark.long
def test_a_setting_is_measured_and_the_result_stands(tab: Tab, run: RunFolder) -> None:
    """A whole measurement of a real run, which `test_measured_runs` has from the shell."""
    tab.watch(run.run_id)
    _begin(tab, 8)
    expect(tab.key("measuring")).to_have_count(0, timeout=_LIMIT_MS)
    expect(tab.key("measured").last).to_contain_text("8 pairs of blocks", timeout=_LIMIT_MS)
    expect(tab.choice("set_amp", "AMP off")).to_be_checked()

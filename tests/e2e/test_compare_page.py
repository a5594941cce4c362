"""The Compare page: reached from the Runs page, linked to by its address, with curves on a chosen axis."""

import re

import pytest
from playwright.sync_api import expect

from harness.demo.writing import write
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab

pytestmark = pytest.mark.browser


def test_two_runs_are_compared_and_the_address_links_to_them(tab: Tab, dashboard: Dashboard) -> None:
    runs = [write(scenario, dashboard.home, steps=300).run_id for scenario in ("steady", "slow-loader")]
    tab.open("compare")
    tab.page.get_by_text("Choose two or more runs.").wait_for()
    field = tab.page.get_by_role("combobox").first
    for name in ("demo: steady", "demo: slow-loader"):
        field.click()
        tab.page.get_by_role("option", name=name).click()
    tab.page.get_by_text("was slower than").wait_for()
    expect(tab.page).to_have_url(re.compile(re.escape("runs=" + "%2C".join(runs))))
    tab.page.reload()
    tab.chart.first.wait_for()
    assert tab.plot("plot._fullLayout.xaxis.title.text") == "step"
    tab.choice("compare_axis", "samples").click()
    tab.until(lambda: tab.plot("plot._fullLayout.xaxis.title.text"), lambda title: title == "samples")

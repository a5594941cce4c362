"""The queue in the browser: a run that is added waits for the one on its device, and starts after it. Of this
`make test` has the worker, the section of the page and the commands, each apart."""

import pytest
from playwright.sync_api import expect

from harness.records.run import RunState
from tests.e2e.serving import LIGHT, Dashboard, end
from tests.e2e.tab import Tab
from tests.supervision import until

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_a_run_that_is_added_starts_when_its_device_is_free(tab: Tab, dashboard: Dashboard) -> None:
    first = dashboard.begin("first in line", **LIGHT)
    tab.open("new")
    tab.name_run("second", "second")
    tab.button("enqueue").click()
    section = tab.key("queue")
    expect(section).to_contain_text("second")
    expect(section).to_contain_text("run 'first in line' is on it")
    expect(tab.button("start")).to_have_count(0)
    end(first)
    until(lambda: [folder.request().name for folder in dashboard.home.runs()], lambda all: len(all) == 2)
    second = dashboard.wait_for(dashboard.home.find("second"), RunState.RUNNING)
    end(second)  # It trains as fast as it can, on a core that the page needs.
    expect(section).to_have_count(0)

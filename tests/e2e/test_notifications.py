"""Notifications by the browser: asked for by a press alone, and once per alert."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from harness.records.run import EventKind
from tests.alert_factories import a_live_run
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab
from tests.supervision import until

pytestmark = pytest.mark.browser

# In place of the browser's own: a headless one has no desktop to show notifications on.
_STAND_IN = """
window.asked = 0;
window.shown = [];
window.Notification = class {
  static permission = localStorage.getItem("permission") ?? "default";
  static async requestPermission() {
    window.asked += 1;
    localStorage.setItem("permission", "granted");
    return (this.permission = "granted");
  }
  constructor(title, options) { window.shown.push([title, options.body]); }
};
"""
# What one tab writes has not reached the other one yet.
_SLOW_STORAGE = """
const setItem = Storage.prototype.setItem;
Storage.prototype.setItem = function (key, value) {
  if (key !== "stepscope-notified") setItem.call(this, key, value);
};
"""


def _shown(page: Page) -> list[Any]:
    notifications: list[Any] = page.evaluate("window.shown")
    return notifications


@pytest.fixture
def new_tab(window: BrowserContext, dashboard: Dashboard) -> Iterator[Callable[[str], Tab]]:
    """Opens a tab with a stand-in for the browser's notifications; what they remember is forgotten."""
    tabs: list[Tab] = []

    def opened(stand_in: str) -> Tab:
        tab = Tab(window, dashboard.url)
        tab.page.add_init_script(stand_in)
        tabs.append(tab)
        return tab

    yield opened
    tabs[0].page.evaluate("localStorage.clear()")
    for tab in tabs:
        tab.close()


@pytest.mark.long
def test_the_bell_asks_when_pressed_and_notifies_once_in_all_tabs(
    new_tab: Callable[[str], Tab], dashboard: Dashboard
) -> None:
    with a_live_run(dashboard.home) as run:
        tab = new_tab(_STAND_IN + _SLOW_STORAGE)
        tab.open("runs")
        bell = tab.page.get_by_role("button", name=re.compile("[Nn]otif"))
        expect(bell).to_have_attribute("aria-pressed", "false")
        assert tab.page.evaluate("window.asked") == 0
        bell.click()
        expect(bell).to_have_attribute("aria-pressed", "true")
        assert tab.page.evaluate("window.asked") == 1
        other = new_tab(_STAND_IN + _SLOW_STORAGE)
        other.open("system")
        name = re.compile("are on in this browser")
        other.page.get_by_role("button", name=name).wait_for()
        for page in (tab.page, other.page):
            expect(page.get_by_role("button", name=name)).to_have_attribute("data-watching", "true")
        run.put(EventKind.OOM, "So it is.")
        both = until(lambda: _shown(tab.page) + _shown(other.page), bool, 30)
        assert both == [["Stepscope: Out of memory", "Out of memory, cnn-1: So it is."]]
        tab.page.wait_for_timeout(6_000)
        assert len(_shown(tab.page) + _shown(other.page)) == 1
        bell.click()
        expect(bell).to_have_attribute("aria-pressed", "false")


def test_blocked_notifications_are_explained(new_tab: Callable[[str], Tab]) -> None:
    tab = new_tab(_STAND_IN.replace('?? "default"', '?? "denied"'))
    tab.open("runs")
    bell = tab.page.get_by_role("button", name=re.compile("are blocked; allow them"))
    expect(bell).to_be_disabled()

"""The System page ticks in place: figures change, what they stand in stays."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab
from tests.supervision import until

pytestmark = pytest.mark.browser

_COUNT = """() => {
  window.added = 0;
  const watched = document.querySelector(".ss-cards");
  watched.dataset.mark = "same";
  new MutationObserver((changes) => {
    for (const change of changes)
      for (const node of change.addedNodes) if (node.nodeType === 1 && node.isConnected) window.added += 1;
  }).observe(watched.parentElement, { childList: true, subtree: true });
}"""
"""Marks the row of cards and counts elements that are put into it from then on and stay."""


def _lines(page: Page) -> list[str]:
    """The sparklines of the row."""
    result: list[str] = page.eval_on_selector_all(
        ".ss-cards .ss-spark-line", "lines => lines.map(line => line.getAttribute('d'))"
    )
    return result


@pytest.mark.long
def test_figures_tick_without_being_put_in_anew(tab: Tab) -> None:
    tab.open("system")
    page = tab.page
    page.locator(".ss-card").first.wait_for()
    page.get_by_text("This machine", exact=True).wait_for()
    page.evaluate(_COUNT)
    observed = {tuple(_lines(page))}

    def drawings() -> int:
        observed.add(tuple(_lines(page)))
        page.wait_for_timeout(100)
        return len(observed)

    until(drawings, lambda count: count >= 4)
    assert page.evaluate("window.added") == 0
    expect(page.locator(".ss-cards[data-mark=same]")).to_have_count(1)


def test_a_run_going_on_is_a_row_and_its_cost_is_told(tab: Tab, dashboard: Dashboard) -> None:
    dashboard.begin("watched")
    tab.open("system")
    tab.page.get_by_text("Active runs", exact=True).wait_for()
    tab.page.get_by_text(re.compile("Sampling is the CPU time of recording")).wait_for()


def test_a_page_that_streamlit_leaves_blank_loads_itself_again(tab: Tab) -> None:
    tab.open("system")
    tab.page.wait_for_function("() => window.Plotly")
    error = "Error('Bad delta path index 3 (should be between [0, 2])')"
    tab.page.evaluate(f"() => {{ window.isOld = true; setTimeout(() => {{ throw {error} }}) }}")
    tab.page.wait_for_function("() => !window.isOld")
    tab.page.locator(".ss-card").first.wait_for()

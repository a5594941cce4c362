"""Every page in light and dark, on a desk and on a phone; the pictures stay in test-results/."""

import operator
import re
from functools import partial
from typing import Literal

import pytest
from playwright.sync_api import expect

from harness.demo import SCENARIOS
from harness.store.folder import RunFolder
from tests.e2e.serving import Dashboard
from tests.e2e.tab import RESULTS, Tab
from tests.simulated_runs import SimulatedRuns

pytestmark = pytest.mark.browser

Size = tuple[int, int]
DESK: Size = (1440, 900)
PHONE: Size = (390, 844)
# In the order of fewest changes: each of the window's size or theme draws the page anew.
SCREENS: tuple[tuple[Size, Literal["light", "dark"]], ...] = (
    (PHONE, "light"),
    (PHONE, "dark"),
    (DESK, "dark"),
    (DESK, "light"),
)
# By WCAG, from the colors as the browser paints them.
_CONTRAST = """part => {
  const context = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const luminance = (color) => {
    context.fillStyle = color;
    context.fillRect(0, 0, 1, 1);
    const channels = [...context.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => value / 255);
    const [red, green, blue] = channels.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const { color, backgroundColor } = getComputedStyle(part);
  const [darker, lighter] = [color, backgroundColor].map(luminance).sort((a, b) => a - b);
  return (lighter + 0.05) / (darker + 0.05);
}"""
PAGES = {"runs": "Runs", "compare": "Compare runs", "tune": "Tune", "new": "New run", "system": "System"}


@pytest.fixture(scope="module")
def runs(dashboard: Dashboard, simulated_runs: SimulatedRuns) -> dict[str, RunFolder]:
    folders = [simulated_runs.copy(dashboard.home, scenario) for scenario in SCENARIOS]
    return {folder.request().name: folder for folder in folders}


def _is_dark(tab: Tab) -> bool:
    background = "getComputedStyle(document.querySelector('.stApp')).backgroundColor"
    return sum(map(int, re.findall(r"\d+", tab.page.evaluate(background))[:3])) < 150


def _check(tab: Tab, name: str) -> None:
    """On a phone and on a desk, keep pictures in light and dark: the page follows the system, and nothing
    hangs out at the side. The window stays a desk's."""
    for (width, height), theme in SCREENS:
        tab.page.set_viewport_size({"width": width, "height": height})
        tab.page.emulate_media(color_scheme=theme)
        tab.until(partial(_is_dark, tab), partial(operator.eq, theme == "dark"))
        tab.expect_to_fit()
        tab.shoot(RESULTS / f"{name}-{width}-{theme}.png")


def _expect_chart_within_screen(tab: Tab) -> float:
    """Wait until the chart, which follows the room that is left to it, ends within the window; its height."""
    edges = "chart => (({ top, bottom }) => [top, bottom])(chart.getBoundingClientRect())"
    top, bottom = tab.until(lambda: tab.chart.evaluate(edges), lambda px: bool(px[1] <= DESK[1]))
    return float(bottom - top)


def test_the_live_page_fits_the_screen(tab: Tab, runs: dict[str, RunFolder]) -> None:
    tab.watch(runs["demo: amp"].run_id)
    drawn = "plot._fullData.filter(trace => trace.visible === true && trace.x?.length > 1).length"
    assert tab.until(lambda: tab.plot(drawn), lambda traces: traces >= 4)
    tab.until(lambda: tab.chart.locator("path.js-line").count(), lambda lines: lines >= 4)
    _check(tab, "live")
    assert _expect_chart_within_screen(tab) > 300
    assert tab.requests > 20  # A tab fails on closing when one of its requests went to another machine.


@pytest.mark.long
def test_the_labels_of_events_stay_below_a_legend_of_many_rows(
    phone: Tab, runs: dict[str, RunFolder]
) -> None:
    phone.watch(runs["demo: amp"].run_id)
    phone.page.get_by_text("Phases", exact=True).click()
    edges = """chart => {
      const places = (name) => [...chart.querySelectorAll(name)].map((part) => part.getBoundingClientRect());
      const names = places("g.legend .legendtext"), labels = places("g.annotation");
      const rows = new Set(names.map((name) => Math.round(name.top)));
      const tops = labels.map((label) => label.top), bottoms = names.map((name) => name.bottom);
      return [rows.size, Math.max(...bottoms), Math.min(...tops)];
    }"""
    phone.until(lambda: phone.chart.evaluate(edges), lambda at: bool(at[0] >= 4 and at[1] <= at[2]), 20)


def test_the_controls_and_buttons_of_the_chart_cover_no_name_of_the_legend(
    tab: Tab, runs: dict[str, RunFolder]
) -> None:
    tab.watch(runs["demo: amp"].run_id)
    overlaps = """() => {
      const places = (of) => [...document.querySelectorAll(of)].map((part) => part.getBoundingClientRect());
      const names = places("g.legend .legendtext"), controls = places(".st-key-view_bar > *, .modebar");
      const covers = (a, b) => a.right > b.left && b.right > a.left && a.bottom > b.top && b.bottom > a.top;
      const covered = names.filter((name) => controls.some((part) => covers(part, name)));
      const last = controls.pop();
      return [names.length, covered.length + controls.filter((part) => covers(part, last)).length];
    }"""
    try:
        for width in (1280, 1100):
            tab.page.set_viewport_size({"width": width, "height": DESK[1]})
            tab.until(lambda: tab.page.evaluate(overlaps), lambda counts: counts[0] >= 7 and counts[1] == 0)
    finally:
        tab.page.set_viewport_size({"width": DESK[0], "height": DESK[1]})


def test_an_ended_run_says_so_within_the_screen(tab: Tab, runs: dict[str, RunFolder]) -> None:
    tab.watch(runs["demo: oom"].run_id)
    tab.expect_alert("Out of memory")
    _check(tab, "live-oom")
    _expect_chart_within_screen(tab)


@pytest.mark.parametrize(
    "path", [pytest.param("compare", marks=pytest.mark.long), *(path for path in PAGES if path != "compare")]
)
def test_a_page_fits_the_screen(tab: Tab, runs: dict[str, RunFolder], path: str) -> None:
    tab.open(path)
    tab.page.get_by_role("heading", name=PAGES[path], exact=True).wait_for()
    if path == "system":
        tab.key("checks").wait_for()
        tab.page.locator(".ss-card").first.wait_for()
    elif path == "compare":
        chosen = [runs[f"demo: {name}"].run_id for name in ("amp", "slow-loader", "oom")]
        tab.open(f"compare?runs={','.join(chosen)}")
        expect(tab.chart).to_have_count(5)
    elif path == "tune":
        tab.button("tune_start_0").wait_for()
    elif path == "new":
        tab.button("start").wait_for()
        expect(tab.page.get_by_text("Checking this machine…")).to_have_count(0)
    else:
        tab.until(tab.rows, lambda rows: len(rows) >= len(runs))
    _check(tab, path)


@pytest.mark.long
def test_text_on_the_primary_color_is_readable_in_light_and_dark(
    tab: Tab, runs: dict[str, RunFolder]
) -> None:
    tab.open(f"compare?runs={runs['demo: amp'].run_id},{runs['demo: oom'].run_id}")
    tag = tab.page.locator(".stMultiSelect [data-tag]").locator("visible=true").first
    tag.wait_for()
    for _, theme in reversed(SCREENS[2:]):
        tab.page.emulate_media(color_scheme=theme)
        tab.until(partial(_is_dark, tab), partial(operator.eq, theme == "dark"))
        tab.until(partial(tag.evaluate, _CONTRAST), partial(operator.le, 4.5))
    tab.open("new")
    tab.until(partial(tab.button("start").evaluate, _CONTRAST), partial(operator.le, 4.5))


def test_the_link_that_the_keyboard_has_reached_has_an_outline(tab: Tab) -> None:
    tab.open("system")
    link = tab.page.get_by_test_id("stTopNavLink").filter(has_text="Runs")
    link.wait_for()
    for _ in range(20):
        tab.page.keyboard.press("Tab")
        if link.evaluate("link => link === document.activeElement"):
            break
    assert link.evaluate("link => getComputedStyle(link).outlineWidth") == "2px"
    assert link.evaluate("link => getComputedStyle(link).outlineStyle") == "solid"

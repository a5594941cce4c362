"""Every page in light and dark, on a desk and on a phone; the pictures stay in test-results/."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from playwright.sync_api import Browser, expect

from harness.demo import write_all
from harness.store.folder import RunFolder
from tests.e2e.conftest import RESULTS
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab

pytestmark = pytest.mark.browser

DESK = (1440, 900)
PHONE = (390, 844)
PAGES = {"runs": "Runs", "new": "New run", "system": "System"}


class Screen(NamedTuple):
    """What a person sits before."""

    size: tuple[int, int]
    theme: str


SCREENS = [Screen(size, theme) for size in (DESK, PHONE) for theme in ("light", "dark")]


@pytest.fixture(scope="module")
def runs(dashboard: Dashboard) -> dict[str, RunFolder]:
    return {folder.request().name: folder for folder in write_all(dashboard.home)}


@pytest.fixture(scope="module", params=SCREENS, ids=lambda screen: f"{screen.size[0]}-{screen.theme}")
def seen(
    request: pytest.FixtureRequest, browser: Browser, dashboard: Dashboard
) -> Iterator[tuple[Screen, Tab]]:
    """A tab on such a screen, for all pages."""
    screen: Screen = request.param
    size = {"width": screen.size[0], "height": screen.size[1]}
    scheme = "dark" if screen.theme == "dark" else "light"
    with browser.new_context(viewport=size, color_scheme=scheme) as window:  # type: ignore[arg-type]  # a TypedDict
        tab = Tab(window, dashboard.url)
        yield screen, tab
        tab.close()


def _check(screen: Screen, tab: Tab, name: str) -> None:
    """Keep a picture; nothing hangs out at the side, and the theme is the screen's."""
    tab.expect_to_fit()
    tab.shoot(RESULTS / f"{name}-{screen.size[0]}-{screen.theme}.png")
    background = "getComputedStyle(document.querySelector('.stApp')).backgroundColor"
    red, green, blue = map(int, re.findall(r"\d+", tab.page.evaluate(background))[:3])
    assert (red + green + blue < 150) == (screen.theme == "dark")


def test_the_live_page_fits_the_screen(seen: tuple[Screen, Tab], runs: dict[str, RunFolder]) -> None:
    screen, tab = seen
    tab.watch(runs["demo: amp"].run_id)
    drawn = "plot._fullData.filter(trace => trace.visible === true && trace.x?.length > 1).length"
    assert tab.until(lambda: tab.plot(drawn), lambda traces: traces >= 4)
    tab.until(lambda: tab.chart.locator("path.js-line").count(), lambda lines: lines >= 4)
    _check(screen, tab, "live")
    if screen.size == DESK:
        box = tab.chart.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= DESK[1]
        assert box["height"] > 300


def test_an_ended_run_says_so_within_the_screen(seen: tuple[Screen, Tab], runs: dict[str, RunFolder]) -> None:
    screen, tab = seen
    tab.watch(runs["demo: oom"].run_id)
    expect(tab.page.get_by_role("alert")).to_be_visible()
    _check(screen, tab, "live-oom")
    if screen.size == DESK:
        box = tab.chart.bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= DESK[1]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_the_screen(seen: tuple[Screen, Tab], runs: dict[str, RunFolder], path: str) -> None:
    screen, tab = seen
    tab.open(path)
    expect(tab.page.get_by_role("heading", name=PAGES[path], exact=True)).to_be_visible()
    if path == "system":
        expect(tab.key("checks")).to_be_visible()
    elif path == "new":
        expect(tab.button("start")).to_be_visible()
        expect(tab.page.get_by_text("Looking at this machine…")).to_have_count(0)
    else:
        tab.until(tab.rows, lambda rows: len(rows) >= len(runs))
    _check(screen, tab, path)

"""Fixtures of the browser tests: a browser, a server and a tab for all modules, an empty home per module.

They end with the last test of this folder: the tests that follow would run beside an idle browser.
"""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect, sync_playwright

from tests.e2e.install_browser import find_chromium
from tests.e2e.serving import Dashboard
from tests.e2e.tab import RESULTS, Tab
from tests.supervision import PATIENCE_S

DESK: ViewportSize = {"width": 1440, "height": 900}
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    # A page lives for seconds here, too short for optimized code to be worth its compilation.
    "--js-flags=--no-opt --no-maglev",
]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The system's Chromium, else Playwright's own. Without one the browser tests fail."""
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        result = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield result
        result.close()


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """The server of all modules; a module gets it by `dashboard`."""
    with Dashboard(tmp_path_factory.mktemp("dashboard")) as server:
        yield server


@pytest.fixture(scope="module")
def dashboard(server: Dashboard) -> Iterator[Dashboard]:
    """A server whose home has no run yet. Every run that the module starts there is ended and removed."""
    if not server.is_up:
        server.start()
    yield server
    server.empty()


@pytest.fixture(scope="package")
def window(browser: Browser) -> Iterator[BrowserContext]:
    """A browser window with tabs that share a cache: scripts are fetched and compiled once."""
    with browser.new_context(viewport=DESK, color_scheme="light", reduced_motion="reduce") as result:
        yield result


@pytest.fixture(scope="package")
def shared_page(window: BrowserContext) -> Page:
    """The tab of all modules; a module gets it by `page`."""
    return window.new_page()


@pytest.fixture(scope="module")
def page(shared_page: Page, dashboard: Dashboard) -> Iterator[Page]:
    """The tab that the tests of a module use one after the other; each loads a page of its own into it."""
    yield shared_page
    shared_page.goto("about:blank")  # Before the runs that it shows are removed.


@pytest.fixture
def tab(
    window: BrowserContext, page: Page, dashboard: Dashboard, request: pytest.FixtureRequest
) -> Iterator[Tab]:
    """A tab on that server. The test fails when anything went wrong in it; test-results/ then shows it."""
    page.mouse.move(0, 0)
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="light")
    result = Tab(window, dashboard.url, page)
    failures = request.session.testsfailed
    yield result
    if request.session.testsfailed > failures:
        result.shoot(RESULTS / f"failed-{request.node.name}.png")
    result.close()


@pytest.fixture
def phone(tab: Tab) -> Tab:
    """The tab, on a dark phone at first."""
    tab.page.set_viewport_size({"width": 390, "height": 900})
    tab.page.emulate_media(color_scheme="dark")
    return tab

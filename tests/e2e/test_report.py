"""A report opens offline: no request, no error, in light and dark, on a phone and on paper."""

from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, expect

from dashboard.report.build import report_of
from harness.demo.writing import write
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a comparison, one of whose runs ran out of memory."""
    home = Home(tmp_path_factory.mktemp("report"))
    folders = [write("amp", home), write("oom", home)]
    path = home.path / "report.html"
    path.write_text(report_of(Supervisor(home, is_read_only=True), folders), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "dark"), pytest.param(1440, "light", marks=pytest.mark.long)]
)
def test_it_opens_without_a_network(
    browser: Browser, report: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    problems: list[str] = []
    requests: list[str] = []
    with browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
    ) as window:
        page = window.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(report.as_uri())
        expect(page.locator("body[data-ready=true]")).to_be_attached()
        expect(page.locator(".chart .main-svg").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert _is_dark(page) is (scheme == "dark")
        page.emulate_media(media="print")
        assert not _is_dark(page)
    assert problems == []
    assert requests == [report.as_uri()]


def _is_dark(page: Page) -> bool:
    color: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return color != "rgb(255, 255, 255)"


def test_the_page_of_a_run_downloads_it(tab: Tab, dashboard: Dashboard) -> None:
    folder = write("steady", dashboard.home, steps=100)
    tab.watch(folder.run_id)
    download = tab.download(tab.page.get_by_role("link", name="Report"))
    assert download.suggested_filename == f"stepscope-{folder.run_id}.html"
    assert "demo: steady" in Path(download.path()).read_text(encoding="utf-8")

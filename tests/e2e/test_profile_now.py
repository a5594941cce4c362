"""Profile now in a browser: a live run is profiled with a click, searched, zoomed, downloaded, compared."""

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from harness.demo import write
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from tests.e2e.serving import Dashboard, end
from tests.e2e.tab import RESULTS, Tab

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def going(dashboard: Dashboard) -> Iterator[RunFolder]:
    """A real run on the CPU, in small and rare steps: the browser needs the processor."""
    folder = dashboard.begin("going", model="cnn", batch_size=8, slow_loader_ms=100.0)
    yield folder
    end(folder)


def _next_tick(tab: Tab) -> None:
    """Wait until the figures above the section are others."""
    line = tab.page.get_by_text(re.compile(r"Steps \d.* sum to the step"))
    before = line.inner_text()
    tab.until(line.inner_text, lambda text: text != before)


@pytest.mark.long
def test_a_click_tells_where_the_time_of_a_step_goes_and_keeps_a_trace(
    tab: Tab, going: RunFolder, tmp_path: Path
) -> None:
    tab.open("profiler", run=going.run_id)
    section = tab.key("profile")
    section.get_by_text(re.compile("No profile of this run yet")).wait_for()
    tab.click_until("profile_now", tab.key("profile_bar").locator(".stMarkdownBadge").first)
    tab.badge("done at step", within="profile_bar").wait_for()
    section.get_by_text(re.compile(r"3 steps took .*convolution")).wait_for()
    section.get_by_text(re.compile(r"training waited .* after them")).wait_for()
    kinds = tab.until(
        section.locator(".ss-kind-line").all_inner_texts, lambda lines: bool(lines) and "100 %" in lines[-1]
    )
    assert [line for line in kinds if line.startswith("convolution")]
    assert kinds[-2].startswith("idle")
    assert kinds[-1].rstrip().endswith("100 %")
    section.get_by_test_id("stDataFrame").first.wait_for()
    download = tab.download(section.get_by_role("link", name=re.compile("Trace")))
    target = tmp_path / download.suggested_filename
    assert target.name.endswith(".json.gz")
    download.save_as(target)
    with gzip.open(target) as file:
        trace = json.load(file)
    assert any("convolution" in event["name"] for event in trace["traceEvents"])


@pytest.mark.long
def test_what_is_typed_or_zoomed_into_survives_ticks(
    tab: Tab, going: RunFolder, dashboard: Dashboard
) -> None:
    if not _profiles(going):
        dashboard.shell("do", going.run_id, "profile", "--wait", "60")
    tab.open("profiler", run=going.run_id)
    section, search = tab.key("profile"), tab.key("profile_search").locator("input")
    search.press_sequentially("convolu")
    _next_tick(tab)
    expect(search).to_be_focused()
    expect(search).to_have_value("convolu")
    search.press_sequentially("tion")
    search.press("Enter")
    section.get_by_text(re.compile(r"^\d+ of \d+ operators$")).wait_for()
    section.get_by_role("tab", name="By module").click()
    section.locator("g.slice").filter(has_text="backward").first.click()
    tab.until(lambda: _level(tab), lambda level: level == "backward")
    _next_tick(tab)
    assert _level(tab) == "backward"
    expect(search).to_have_value("convolution")


def _profiles(folder: RunFolder) -> int:
    with LogReader(folder.log) as reader:
        return len(reader.profiles.all())


def _level(tab: Tab) -> str:
    """The part of the section's icicle that is zoomed into."""
    return str(tab.plot("plot._fullData[0].level ?? ''", within=tab.key("profile")))


@pytest.mark.long
def test_two_profiles_of_a_simulated_run_are_compared(tab: Tab, dashboard: Dashboard) -> None:
    folder = write("amp", dashboard.home, steps=1_000)
    tab.open("profiler", run=folder.run_id)
    tab.key("profile_beside_2_2").locator("input").click()
    tab.page.get_by_role("option", name=re.compile("^#1")).click()
    section = tab.key("profile")
    section.get_by_text(re.compile("After AMP bf16 a step takes .* less time")).wait_for()
    expect(section.locator(".ss-kinds-two .ss-kind-line").filter(has_text="attention")).to_contain_text("−")
    tab.shoot(RESULTS / "profiles-compared.png")

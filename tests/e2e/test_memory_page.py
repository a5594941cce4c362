"""The Memory page in a browser: found from Live, told at a glance, kept as set up, asked for snapshots."""

import re

import pytest
from playwright.sync_api import expect

from harness.store.folder import RunFolder
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab
from tests.simulated_runs import SimulatedRuns

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def run(dashboard: Dashboard) -> RunFolder:
    return dashboard.begin("shared")


@pytest.fixture(scope="module")
def leak(dashboard: Dashboard, simulated_runs: SimulatedRuns) -> RunFolder:
    return simulated_runs.copy(dashboard.home, "leak")


def _open(tab: Tab, folder: RunFolder) -> None:
    tab.open("memory", folder.run_id)
    tab.chart.wait_for()


def test_the_memory_page_is_found_from_live_with_the_same_run(tab: Tab, leak: RunFolder) -> None:
    tab.watch(leak.run_id)
    tab.page.get_by_role("link", name="Causes and remedies").click()
    tab.key("memory_waterfall").wait_for()
    tab.expect_run(leak.run_id)
    expect(tab.key("pick_run").get_by_role("combobox")).to_have_value("demo: leak")


def test_verdict_waterfall_and_suspect_are_told(tab: Tab, leak: RunFolder) -> None:
    _open(tab, leak)
    tab.expect_alert("Leak.")
    bars = tab.key("memory_waterfall").locator(".ss-fall-bar")
    bars.nth(6).wait_for()
    narrowest = "bars => Math.min(...bars.map(bar => bar.getBoundingClientRect().width))"
    tab.until(lambda: bars.evaluate_all(narrowest), lambda width_px: width_px >= 2)
    colors = bars.evaluate_all("bars => bars.map(bar => getComputedStyle(bar).backgroundColor)")
    assert len(set(colors)) >= 6
    expect(tab.key("memory_snapshots")).to_contain_text(re.compile("allocated at train.py:.?88 train_step"))


def test_a_name_in_the_waterfall_explains_itself_on_hover(tab: Tab, leak: RunFolder) -> None:
    _open(tab, leak)
    name = tab.key("memory_waterfall").get_by_text("reserved, split remainders")
    name.hover()
    shown = "name => getComputedStyle(name, '::after').content"
    tab.until(lambda: str(name.evaluate(shown)), lambda text: "fragmentation" in text)


def test_modules_are_drawn_inside_each_other(tab: Tab, leak: RunFolder) -> None:
    _open(tab, leak)
    slices = tab.key("memory_modules").locator(".iciclelayer path.surface")
    tab.until(slices.count, lambda count: count > 12)
    tab.key("memory_modules").get_by_role("tab", name="Table").click()
    tab.key("memory_modules").locator("[data-testid=stDataFrame]").wait_for()


@pytest.mark.long
def test_zoom_survives_ticks_and_a_new_finding(tab: Tab, run: RunFolder) -> None:
    _open(tab, run)
    tab.wait_for_steps(60)
    view = tab.zoom()
    tab.wait_for_ticks(2)
    assert tab.view == view
    tab.page.locator("[data-testid=stAlert]").first.wait_for()


@pytest.mark.long
def test_a_run_that_is_over_gives_no_snapshot_and_says_why(tab: Tab, leak: RunFolder) -> None:
    _open(tab, leak)
    expect(tab.button("snapshot")).to_be_disabled()
    tab.key("snapshot").hover()
    expect(tab.page.get_by_role("tooltip")).to_contain_text("simulated")


@pytest.mark.long
def test_a_snapshot_is_asked_for_taken_and_listed(tab: Tab, run: RunFolder) -> None:
    _open(tab, run)
    tab.wait_for_steps(20)
    tab.button("snapshot").click()
    tab.badge("snapshot · ", within="snapshot_bar").wait_for()
    tab.badge("snapshot · applied at step", within="snapshot_bar").wait_for()
    snapshots = tab.key("memory_snapshots")
    chosen = snapshots.get_by_role("combobox", name="Snapshot")
    expect(chosen).to_have_value(re.compile("requested"))
    expect(snapshots).to_contain_text(re.compile("times the usual step time|slower by an unknown amount"))
    tab.key("memory_modules").get_by_role("radio", name="activations").wait_for()


@pytest.mark.parametrize(
    "scenario",
    ["leak", "empty", *(pytest.param(name, marks=pytest.mark.long) for name in ("oom", "fragmentation"))],
)
def test_the_page_fits_the_screen_whatever_happened(
    phone: Tab, dashboard: Dashboard, simulated_runs: SimulatedRuns, scenario: str
) -> None:
    named = [folder for folder in dashboard.home.runs() if folder.request().name == f"demo: {scenario}"]
    folder = named[0] if named else simulated_runs.copy(dashboard.home, scenario)
    phone.open("memory", folder.run_id)
    phone.key("memory_emptied").wait_for()
    if scenario != "empty":
        phone.chart.wait_for()
    phone.expect_to_fit_all_screens(f"memory-{scenario}")

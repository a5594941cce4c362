"""The Live page over a real run: it moves, keeps what a person set up, and carries out what they ask for."""

import operator
import re
from functools import partial

import pytest
from playwright.sync_api import Browser, Route, expect

from harness.records.run import RunState
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab

pytestmark = pytest.mark.browser

# Counts how often the chart and the row of figures are put into the page from then on.
_COUNT_PARTS = """() => {
  window.parts = { "ss-plot": 0, "ss-cards": 0 };
  new MutationObserver((changes) => {
    for (const change of changes)
      for (const node of change.addedNodes)
        for (const name of node.classList ?? []) if (name in window.parts) window.parts[name] += 1;
  }).observe(document, { childList: true, subtree: true });
}"""
# Only a tick's chart travels in a message of this size.
_LARGE_FRAME_BYTES = 10_000


@pytest.fixture(scope="module")
def run(dashboard: Dashboard) -> RunFolder:
    return dashboard.begin("shared")


def test_the_figures_and_the_chart_follow_the_run(tab: Tab, run: RunFolder) -> None:
    tab.watch(run.run_id)
    tab.wait_for_steps(40)
    for card in ("allocated", "step", "loss"):
        tab.until(partial(tab.card, card), lambda text: text not in ("", "n/a"))
    full_traces = "plot._fullData.filter(trace => trace.visible === true && trace.x.length > 20).length"
    tab.until(lambda: tab.plot(full_traces), lambda traces: traces >= 4)
    last_step, footer = tab.chart.evaluate(
        "chart => [Number(chart.dataset.lastStep), chart.querySelector('.ss-plot-footer').textContent]"
    )
    assert f"step {last_step:,}" in footer
    tab.badge("running").wait_for()


def test_a_new_session_shows_which_steps_are_drawn(
    dashboard: Dashboard, run: RunFolder, browser: Browser
) -> None:
    with browser.new_context() as window:
        page = window.new_page()
        page.goto(dashboard.url)
        expect(page.get_by_role("radio", name="all", checked=True)).to_be_visible(timeout=30_000)


def test_a_hover_label_stays_while_the_chart_goes_on(tab: Tab, run: RunFolder) -> None:
    tab.stay_with(run.run_id)
    tab.hover_panel(1 / 2)
    label = tab.chart.locator(".hoverlayer .legend, .hoverlayer .hovertext")
    label.first.wait_for()
    expect(tab.chart.locator(".hoverlayer")).to_contain_text("allocated")
    tab.wait_for_ticks(3)
    label.first.wait_for()


def test_amp_is_switched_while_the_run_goes_on(tab: Tab, run: RunFolder) -> None:
    tab.stay_with(run.run_id)
    tab.choice("set_amp", "bf16").click()
    tab.wait_for_marker("AMP bf16")
    tab.badge("AMP bf16 · applied at step").wait_for()
    expect(tab.choice("set_amp", "bf16")).to_be_checked()
    tab.choice("set_amp", "AMP off").click()
    tab.wait_for_marker("AMP off")


def test_the_batch_is_resized_while_the_run_goes_on(tab: Tab, run: RunFolder) -> None:
    tab.stay_with(run.run_id)
    tab.choice("set_batch_size", "bs 64").click()
    tab.wait_for_marker("batch 64")
    expect(tab.choice("set_batch_size", "bs 64")).to_be_checked()
    tab.badge("applied at step", within="changes").wait_for()
    tab.until(lambda: tab.card("step"), lambda text: text != "n/a")


def test_the_cache_is_emptied_on_request(tab: Tab, run: RunFolder) -> None:
    tab.stay_with(run.run_id)
    before = tab.markers.count("empty_cache()")
    tab.button("empty_cache").click()
    tab.until(lambda: tab.markers.count("empty_cache()"), lambda now: now > before)


@pytest.mark.long
def test_a_change_that_cannot_be_made_says_why(tab: Tab, run: RunFolder) -> None:
    tab.stay_with(run.run_id)
    tab.button("more_settings").click()
    field = tab.page.get_by_role("spinbutton", name="Memory cap")
    field.fill("0.001")
    field.press("Enter")
    tab.badge("cap 0.001 GiB · rejected").wait_for()
    tab.page.keyboard.press("Escape")
    tab.key("changes").get_by_text("the smallest cap that works now is").first.wait_for()
    tab.wait_for_steps(5)


def test_what_the_cpu_cannot_do_is_disabled_with_the_reason(tab: Tab, run: RunFolder) -> None:
    tab.stay_with(run.run_id)
    expect(tab.key("set_pin_memory").get_by_role("switch")).to_be_disabled()
    tab.key("set_pin_memory").locator("[data-testid=stTooltipIcon]").first.hover()
    _expect_tooltip(tab, "Pinned memory needs a GPU")
    expect(tab.button("no_fp16")).to_be_disabled()
    tab.key("no_fp16").hover()
    _expect_tooltip(tab, "fp16 is not available on")


def _expect_tooltip(tab: Tab, text: str) -> None:
    """The one before it may still be fading out."""
    tab.page.get_by_role("tooltip").filter(has_text=text).wait_for()


def test_its_name_is_an_address_too(tab: Tab, run: RunFolder) -> None:
    tab.open("live", run.run_id)
    tab.chart.wait_for()
    assert tab.page.url == f"{tab.url}/?run={run.run_id}"


def test_a_run_is_paused_and_resumed(tab: Tab, run: RunFolder) -> None:
    tab.stay_with(run.run_id)
    tab.button("pause").click()
    tab.badge("paused").wait_for()
    expect(tab.button("resume")).to_contain_text("Resume")
    expect(tab.button("pause")).to_have_count(0)  # A late click on it does not resume the run.
    held = _last_step(run)
    for _ in range(2):  # The process goes on, beating once a second, and takes no step.
        tab.until(partial(_beat_ns, run), partial(operator.lt, _beat_ns(run)))
    assert _last_step(run) == held == tab.until(lambda: tab.last_step, lambda step: step == held)
    tab.button("resume").click()
    tab.badge("running").wait_for()
    tab.until(lambda: tab.last_step, lambda step: step > held)


def _beat_ns(run: RunFolder) -> int:
    return run.alive.stat().st_mtime_ns


def _last_step(run: RunFolder) -> int:
    with LogReader(run.log) as reader:
        return reader.extent().last or 0


@pytest.mark.long
def test_zoom_and_a_hidden_trace_survive_ticks_a_full_rerun_and_a_visit_elsewhere(
    tab: Tab, run: RunFolder
) -> None:
    tab.watch(run.run_id)
    tab.wait_for_steps(1)
    tab.chart.evaluate("chart => { chart.dataset.mark = 'same'; }")
    tab.hide("loss")
    hidden = tab.hidden
    view = tab.zoom()
    tab.wait_for_ticks(2)
    assert (tab.view, tab.hidden) == (view, hidden)
    marked = tab.markers
    tab.button("empty_cache").click()  # A change of the settings draws the whole page anew.
    tab.badge("empty_cache() · applied").wait_for()
    tab.wait_for_ticks(2)
    assert (tab.view, tab.hidden) == (view, hidden)
    assert len(tab.markers) >= len(marked)
    assert tab.drawn("mark") == "same"
    tab.page.get_by_role("link", name="System").click()
    tab.page.get_by_role("heading", name="System", exact=True).wait_for()
    tab.page.get_by_role("link", name="Live").click()
    tab.chart.wait_for()
    tab.wait_for_ticks(1)
    assert (tab.view, tab.hidden) == (view, hidden)
    assert tab.drawn("mark") == ""


@pytest.mark.long
def test_parts_of_the_page_stay_in_place_when_data_overtakes_their_drawing(tab: Tab, run: RunFolder) -> None:
    """The scripts arrive late, as on a slow machine, so that several ticks wait to be drawn."""
    scripts: list[Route] = []
    modules = re.compile(r"/static/(plot|cards)\.mjs$")
    tab.page.route(modules, lambda script: scripts.append(script))
    tab.open(run=run.run_id)
    tab.until(lambda: len(scripts), lambda number: number == 2)
    tab.page.evaluate(_COUNT_PARTS)
    tab.until(lambda: sum(size > _LARGE_FRAME_BYTES for size in tab.frames), lambda ticks: ticks >= 3)
    for script in scripts:
        script.continue_()
    tab.page.unroute(modules)
    tab.chart.wait_for()
    tab.wait_for_ticks(2)
    assert tab.page.evaluate("window.parts") == {"ss-plot": 1, "ss-cards": 1}


def test_a_run_is_stopped(tab: Tab, dashboard: Dashboard, run: RunFolder) -> None:
    """The last test of this run."""
    tab.stay_with(run.run_id)
    tab.button("stop").click()
    tab.badge("stopped").wait_for()
    dashboard.wait_for(run, RunState.STOPPED)
    assert "Stopped by request" in dashboard.supervisor.status(run).message
    expect(tab.choice("set_amp", "bf16")).to_be_disabled()

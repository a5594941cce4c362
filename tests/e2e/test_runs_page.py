"""The Runs page: opening, comparing and deleting runs, damaged logs, and names that look like markup."""

import operator
import re
import shlex
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import expect

from harness.demo import write
from harness.records.run import RunState
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.inserts import StateChange
from tests.e2e.serving import Dashboard, end
from tests.e2e.tab import Tab
from tests.many_runs import write_many
from tests.store_factories import a_run, an_event, steps

pytestmark = pytest.mark.browser

MARKUP = "<script>alert(1)</script> <b>a</b> &lt;i&gt; **b** [x](javascript:1) $x$ :red[x] :material/home:"
SHOWN = re.compile(re.escape(MARKUP).replace(":", ":\u2060?"))
"""As Streamlit's Markdown shows it: an invisible joiner keeps a colon from beginning a shortcode."""


def _finished(dashboard: Dashboard, name: str, last: int = 100) -> RunFolder:
    """A run that has ended, of any name."""
    folder = dashboard.home.create(name, resolve({"model": "mlp"}), time.time_ns())
    row = a_run(folder.run_id, name)._replace(settings=folder.request().settings_json)
    with LogAppender(folder.log, row) as log:
        log.append(steps(1, last))
        event = an_event("Finished.", last)
        log.append(states=[StateChange(RunState.FINISHED, "Finished.", time.time_ns(), event)], durable=True)
    return folder


def test_an_old_run_is_opened_by_its_address(tab: Tab, dashboard: Dashboard) -> None:
    folder = _finished(dashboard, "old")
    tab.watch(folder.run_id)
    assert tab.last_step == 100
    tab.badge("finished").wait_for()
    expect(tab.button("stop")).to_have_count(0)


@pytest.mark.long
def test_a_run_folder_from_elsewhere_is_opened(tab: Tab, dashboard: Dashboard) -> None:
    folder = _finished(dashboard, "travels")
    copied = folder.path.rename(folder.path.with_name("20200101-000000-abcd"))
    request = (copied / "request.json").read_text(encoding="utf-8")
    (copied / "request.json").write_text(request.replace(folder.run_id, copied.name), encoding="utf-8")
    tab.watch(copied.name)
    tab.badge("finished").wait_for()


def test_an_unknown_run_in_the_address_gets_a_sentence(tab: Tab, dashboard: Dashboard) -> None:
    _finished(dashboard, "another")
    tab.open(run="<b>nobody</b>")
    tab.expect_alert("There is no run '<b>nobody</b>' in")
    tab.page.get_by_text("See all runs").click()
    tab.page.get_by_role("heading", name="Runs").wait_for()


def test_a_run_is_selected_opened_and_found_back(tab: Tab, dashboard: Dashboard) -> None:
    folder = _finished(dashboard, "to open")
    tab.open("runs")
    tab.select_row("to open")
    tab.button("open_run").click()
    tab.chart.wait_for()
    tab.expect_run(folder.run_id)
    tab.page.go_back()
    tab.page.get_by_role("heading", name="Runs").wait_for()


@pytest.mark.long
def test_two_runs_are_compared(tab: Tab, dashboard: Dashboard) -> None:
    _finished(dashboard, "one of two", 120)
    _finished(dashboard, "two of two", 80)
    tab.open("runs")
    tab.select_row("one of two")
    tab.select_row("two of two")
    tab.chart.wait_for()
    names = "[...new Set(plot._fullData.map(trace => trace.name))]"
    tab.until(lambda: tab.plot(names), lambda result: set(result) == {"one of two", "two of two"})


@pytest.fixture
def many(dashboard: Dashboard) -> Iterator[None]:
    """Sixty runs, older than all others, for one test."""
    folders = write_many(dashboard.home, 60)
    yield
    for folder in folders:
        dashboard.home.remove(folder)


@pytest.mark.long
@pytest.mark.usefixtures("many")
def test_one_of_many_runs_is_on_another_page_and_found_by_a_search(tab: Tab) -> None:
    tab.open("runs")
    tab.until(tab.rows, lambda rows: bool(rows) and "run-0005" not in rows)
    first = tab.rows()[0]
    tab.key("runs_pages").get_by_text("2", exact=True).click()
    tab.until(tab.rows, lambda rows: bool(rows) and first not in rows)
    tab.key("runs_search").locator("input").fill("run-0005")
    tab.page.keyboard.press("Enter")
    tab.until(tab.rows, lambda rows: rows == ["run-0005"])
    tab.page.get_by_text(re.compile(r"^1 of \d+ runs$")).wait_for()


def test_a_run_is_deleted_after_a_second_click(tab: Tab, dashboard: Dashboard) -> None:
    folder = _finished(dashboard, "to delete")
    tab.open("runs")
    tab.select_row("to delete")
    tab.button("delete_run").click()
    tab.page.get_by_text("Delete to delete?").wait_for()
    assert folder.path.exists()
    tab.button("delete_run_confirmed").click()
    tab.until(folder.path.exists, lambda there: not there)
    tab.until(lambda: "to delete" in tab.rows(), lambda listed: not listed)


@pytest.mark.long
def test_a_run_deleted_elsewhere_is_noticed_by_the_page_that_shows_it(tab: Tab, dashboard: Dashboard) -> None:
    _finished(dashboard, "stays")
    folder = _finished(dashboard, "deleted elsewhere")
    tab.watch(folder.run_id)
    shutil.rmtree(folder.path)
    tab.expect_alert(f"The run {folder.run_id} was deleted")
    tab.page.get_by_text("See all runs").click()
    tab.page.get_by_role("heading", name="Runs").wait_for()


@pytest.mark.long
def test_the_selection_of_a_run_that_goes_on_outlasts_a_refresh_and_it_cannot_be_deleted(
    tab: Tab, dashboard: Dashboard
) -> None:
    folder = dashboard.begin("goes on")
    tab.open("runs")
    tab.select_row("goes on")
    first = tab.cell("goes on", "Steps")
    tab.until(lambda: tab.cell("goes on", "Steps"), lambda shown: shown != first)
    tab.button("open_run").wait_for()
    tab.button("delete_run").click()
    tab.button("delete_run_confirmed").click()
    tab.expect_alert("is still running, so it cannot be deleted")
    assert folder.log.exists()
    end(folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"SQLite format 3\0" + b"\xff" * 4000, "damaged"),
        (b"a photograph of a cat", "not"),
    ],
)
def test_a_log_that_cannot_be_read_is_listed_with_a_sentence(
    tab: Tab, dashboard: Dashboard, content: bytes, sentence: str
) -> None:
    folder = _finished(dashboard, f"unreadable {len(content)}")
    Path(folder.log).write_bytes(content)
    tab.open("runs")
    warning = tab.expect_alert(f"unreadable {len(content)}")
    expect(warning).to_contain_text(sentence)
    expect(warning).to_contain_text(str(folder.log))
    tab.open(run=folder.run_id)
    tab.expect_alert(sentence)


@pytest.mark.long
def test_markup_in_a_name_is_text_wherever_it_is_shown(tab: Tab, dashboard: Dashboard) -> None:
    folder = _finished(dashboard, MARKUP)
    other = write("steady", dashboard.home, steps=50)
    tab.watch(folder.run_id)
    expect(tab.key("pick_run").locator("input")).to_have_value(MARKUP)
    tab.open("runs")
    tab.select_row(MARKUP)
    actions = tab.key("run_actions")
    actions.get_by_text(MARKUP, exact=True).wait_for()
    tab.button("delete_run").click()
    tab.page.get_by_text(f"Delete {MARKUP}?").wait_for()
    tab.page.keyboard.press("Escape")
    tab.select_row(other.request().name)
    tab.chart.wait_for()
    expect(tab.chart.locator(".legendtext").filter(has_text=MARKUP)).to_have_count(1)
    folder.log.write_bytes(b"gone")
    tab.open("runs")
    tab.expect_alert(SHOWN)
    tab.open("new")
    tab.name_run(MARKUP, shlex.quote(MARKUP))
    tab.button("start").click()
    tab.expect_alert(SHOWN)


def test_the_toolbar_of_the_table_does_not_cover_the_order(tab: Tab, dashboard: Dashboard) -> None:
    _finished(dashboard, "ordered")
    tab.open("runs")
    table = tab.page.get_by_test_id("stDataFrame").first
    table.hover()
    toolbar = tab.page.get_by_test_id("stElementToolbar").first
    opacity = partial(toolbar.evaluate, "toolbar => getComputedStyle(toolbar).opacity")
    tab.until(opacity, partial(operator.eq, "1"))
    order, tools = tab.key("runs_filter").bounding_box(), toolbar.bounding_box()
    assert order is not None
    assert tools is not None
    assert order["y"] + order["height"] <= tools["y"]

"""From an empty home to a run: the welcome, the simulated runs, the form for a new run."""

import pytest
from playwright.sync_api import expect

from harness.demo import SCENARIOS, write
from harness.demo.recordings import recordings
from harness.store.folder import RunFolder
from tests.e2e.serving import Dashboard, end
from tests.e2e.tab import Tab

pytestmark = pytest.mark.browser


def _simulate(dashboard: Dashboard, *scenarios: str) -> None:
    """Write those of the simulated runs that the first test, left out by a person, has not loaded."""
    values = {folder.request().name for folder in dashboard.home.runs()}
    for scenario in scenarios:
        if f"demo: {scenario}" not in values:
            write(scenario, dashboard.home)


def _named(dashboard: Dashboard, name: str) -> RunFolder:
    (folder,) = [folder for folder in dashboard.home.runs() if folder.request().name == name]
    return folder


def _only(dashboard: Dashboard, values: set[str]) -> RunFolder:
    """The one run that is not among the known."""
    (folder,) = [folder for folder in dashboard.home.runs() if folder.run_id not in values]
    return folder


def test_an_empty_home_says_what_to_do_and_loads_the_simulated_runs(tab: Tab, dashboard: Dashboard) -> None:
    tab.open()
    tab.page.get_by_text("No run yet").wait_for()
    expect(tab.page).to_have_title("Live · Stepscope")
    tab.button("welcome_start").wait_for()
    tab.button("load_demo").click()
    tab.chart.wait_for()
    names = {folder.request().name for folder in dashboard.home.runs()}
    simulated = {f"demo: {key}" for key in SCENARIOS}
    assert names == simulated | {f"recorded: {one.key}" for one in recordings()}
    tab.badge("simulated").wait_for()
    assert tab.last_step == SCENARIOS["steady"].steps


def test_another_run_is_chosen_by_its_name(tab: Tab, dashboard: Dashboard) -> None:
    _simulate(dashboard, "steady", "amp")
    tab.open()
    tab.chart.wait_for()
    tab.choose_run("demo: amp")
    expect(tab.page.locator(".ss-plot-footer")).to_contain_text("20,400")
    tab.until(lambda: set(tab.markers), lambda markers: {"AMP bf16", "batch 48", "empty_cache()"} <= markers)
    tab.expect_run(_named(dashboard, "demo: amp").run_id)
    for choice in ("set_amp", "set_batch_size"):
        expect(tab.key(choice).get_by_role("radio").first).to_be_disabled()


@pytest.mark.long
def test_start_clicked_ten_times_starts_one_run(tab: Tab, dashboard: Dashboard) -> None:
    values = {folder.run_id for folder in dashboard.home.runs()}
    tab.open("new")
    _choose_model(tab, "MLP")
    tab.name_run("from the form", "'from the form'")
    tab.button("start").evaluate("button => { for (let i = 0; i < 10; i++) button.click(); }")
    tab.chart.wait_for()
    folder = _only(dashboard, values)
    assert folder.request().name == "from the form"
    tab.expect_run(folder.run_id)
    tab.wait_for_steps(1)
    end(folder)  # It trains as fast as it can, on a core that the page needs.

    def cards() -> dict[str, str]:
        return {card: tab.card(card) for card in ("step", "loss", "allocated")}

    tab.until(cards, lambda texts: {"", "n/a"}.isdisjoint(texts.values()))


@pytest.mark.long
def test_a_name_that_is_taken_is_refused_and_the_form_keeps_its_values(
    tab: Tab, dashboard: Dashboard
) -> None:
    _simulate(dashboard, "steady")
    values = {folder.run_id for folder in dashboard.home.runs()}
    tab.open("new")
    _choose_model(tab, "MLP")
    tab.name_run("demo: steady", "'demo: steady'")
    tab.button("start").click()
    tab.expect_alert("There is already a run named")
    expect(tab.page.get_by_label("Name", exact=True)).to_have_value("demo: steady")
    expect(tab.key("new_model").locator("input")).to_have_value("MLP")
    assert {folder.run_id for folder in dashboard.home.runs()} == values


@pytest.mark.long
def test_the_form_says_whether_a_run_fits_and_the_largest_batch_that_does(tab: Tab) -> None:
    tab.open("new")
    _choose_model(tab, "MLP")
    panel = tab.key("prediction")
    tab.badge("fits", within="prediction").wait_for()
    panel.locator(".ss-bar-name", has_text="activations").wait_for()
    panel.get_by_text("Largest batch size that fits").wait_for()
    tab.button("use_largest_batch").click()
    tab.page.get_by_text("--batch-size").wait_for()
    panel.get_by_text("MiB at the peak").or_(panel.get_by_text("GiB at the peak")).wait_for()


def _choose_model(tab: Tab, title: str) -> None:
    tab.key("new_model").locator("input").click()
    tab.page.get_by_role("option", name=title).click()

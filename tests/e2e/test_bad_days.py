"""The dashboard killed, a run killed, memory exhausted: the page says so, and nothing is lost."""

import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, expect

from harness.records.run import AmpMode, CommandState, RunState
from harness.settings.spec import from_json
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.supervisor.signals import signal_run
from tests.e2e.serving import Dashboard, end
from tests.e2e.tab import Tab
from tests.simulated_runs import SimulatedRuns

pytestmark = pytest.mark.browser


@pytest.fixture
def survivor(window: BrowserContext, dashboard: Dashboard) -> Iterator[Tab]:
    """A tab whose server dies under it: that it says so in the console is no fault."""
    result = Tab(window, dashboard.url, is_forgiving=True)
    yield result
    result.close()


@pytest.fixture(scope="module")
def run(dashboard: Dashboard) -> RunFolder:
    """A run that outlives its servers, started from a shell that has gone since."""
    dashboard.shell("run", "mlp", "--slow-loader-ms", "40", "--name", "orphan", "--detach")
    return dashboard.wait_for(dashboard.home.find("orphan"), RunState.RUNNING)


def _logged(folder: RunFolder) -> int:
    with LogReader(folder.log) as reader:
        reader.check()
        return reader.extent().last or 0


@pytest.mark.long
def test_a_run_outlives_its_dashboard_and_the_page_finds_back(
    survivor: Tab, dashboard: Dashboard, run: RunFolder
) -> None:
    survivor.watch(run.run_id)
    survivor.wait_for_steps(1)
    dashboard.kill()
    step = _logged(run)
    survivor.until(lambda: _logged(run), lambda now: now > step)
    dashboard.start()
    survivor.until(lambda: survivor.last_step, lambda now: now > step)
    survivor.page.reload()
    survivor.chart.wait_for()
    survivor.wait_for_steps(10)
    survivor.badge("running").wait_for()
    expect(survivor.button("stop")).to_be_enabled()


@pytest.mark.long
@pytest.mark.parametrize("wait_ms", [0, 60])
def test_a_server_killed_in_mid_click_leaves_nothing_half_done(
    survivor: Tab, dashboard: Dashboard, run: RunFolder, wait_ms: int
) -> None:
    survivor.watch(run.run_id)
    expected = "bf16" if survivor.choice("set_amp", "AMP off").is_checked() else "AMP off"
    survivor.choice("set_amp", expected).click(no_wait_after=True)
    survivor.page.wait_for_timeout(wait_ms)
    dashboard.kill()
    with ControlLog(run) as control:
        request = {command.command_id for _, command in control.commands()}
    survivor.until(lambda: request - _answered(run), lambda open_ones: not open_ones)
    dashboard.start()
    survivor.watch(run.run_id)
    survivor.wait_for_steps(1)
    survivor.badge("running").wait_for()
    with LogReader(run.log) as reader:
        in_effect = from_json(reader.settings_history()[-1].settings)
    expect(survivor.choice("set_amp", "bf16" if in_effect.amp is AmpMode.BF16 else "AMP off")).to_be_checked()


def _answered(run: RunFolder) -> set[str]:
    with LogReader(run.log) as reader:
        return {ack.command_id for ack in reader.acks() if ack.state == CommandState.APPLIED}


@pytest.mark.long
def test_a_server_killed_as_start_is_clicked_leaves_a_whole_run_or_none(
    survivor: Tab, dashboard: Dashboard
) -> None:
    values = {folder.run_id for folder in dashboard.home.runs()}
    survivor.open("new")
    survivor.name_run("started in the last moment", "'started in the last moment'")
    survivor.button("start").click(no_wait_after=True)
    dashboard.kill()
    dashboard.start()
    for folder in dashboard.home.runs():
        if folder.run_id not in values:
            dashboard.wait_for(folder, RunState.RUNNING, RunState.LOST)
            survivor.open(run=folder.run_id)
            survivor.badge("running").or_(survivor.badge("lost")).wait_for()
            end(folder)  # It trains as fast as it can, on a core that the next tests need.


def test_a_killed_run_says_so_and_keeps_its_log(tab: Tab, dashboard: Dashboard) -> None:
    folder = dashboard.begin("to kill")
    tab.watch(folder.run_id)
    tab.wait_for_steps(1)
    tab.chart.evaluate("chart => { chart.dataset.mark = 'same'; }")
    assert signal_run(folder, signal.SIGKILL)
    dashboard.wait_for(folder, RunState.KILLED)
    tab.badge("killed").wait_for()
    last = _logged(folder)
    alert = tab.expect_alert("Killed by SIGKILL at step ")
    expect(alert).to_contain_text(re.compile(f"after step {last:,} w|Everything is in the log"))
    killed_at = re.search(r"at step ([\d,]+)", alert.inner_text())
    assert killed_at is not None
    assert int(killed_at[1].replace(",", "")) >= last
    tab.until(lambda: tab.last_step, lambda step: step == last)
    assert tab.drawn("mark") == "same"


@pytest.mark.long
def test_a_run_that_cannot_be_sent_a_command_is_stopped_from_the_page_all_the_same(
    tab: Tab, dashboard: Dashboard
) -> None:
    folder = dashboard.begin("deafened")
    tab.watch(folder.run_id)
    tab.wait_for_steps(1)
    folder.control.write_bytes(b"not a database at all" * 100)
    tab.button("stop").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("The run is stopped by signals instead.")
    tab.badge("stopped").wait_for()
    dashboard.wait_for(folder, RunState.STOPPED)


def test_a_run_that_nobody_saw_die_is_lost_and_says_so(tab: Tab, run: RunFolder) -> None:
    tab.watch(run.run_id)
    tab.wait_for_steps(1)
    assert signal_run(run, signal.SIGKILL)
    tab.badge("lost").wait_for()
    tab.expect_alert("vanished")
    assert _logged(run) > 0


def test_a_simulated_out_of_memory_has_a_red_marker_and_a_sentence(
    tab: Tab, dashboard: Dashboard, simulated_runs: SimulatedRuns
) -> None:
    folder = simulated_runs.copy(dashboard.home, "oom")
    tab.watch(folder.run_id)
    assert "out of memory" in tab.markers
    assert _dash_color(tab) == "#c62828"
    tab.expect_alert("Out of memory in step")
    tab.badge("out of memory").wait_for()


@pytest.mark.long
def test_a_real_out_of_memory_is_shown_and_the_next_run_starts(tab: Tab, dashboard: Dashboard) -> None:
    folder = dashboard.begin("too big", is_fresh=True, model="cnn", memory_cap_gib=0.3, oom_policy="stop")
    tab.watch(folder.run_id)
    tab.wait_for_steps(10)
    tab.button("more_settings").click()
    batch = tab.page.get_by_role("spinbutton", name="Batch size")
    batch.fill("8192")
    batch.press("Enter")
    tab.badge("out of memory").wait_for()
    tab.page.keyboard.press("Escape")
    tab.expect_alert("Out of memory")
    tab.wait_for_marker("out of memory")
    assert _dash_color(tab) == "#c62828"
    dashboard.wait_for(folder, RunState.OUT_OF_MEMORY)
    following = dashboard.begin("the next one")
    tab.watch(following.run_id)
    tab.wait_for_steps(1)


def _dash_color(tab: Tab) -> str:
    """The color of the last marker's dashes."""
    color = tab.plot("plot.layout.shapes.filter(shape => shape.line?.dash === 'dash').at(-1).line.color")
    return str(color)

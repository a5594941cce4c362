"""Measure what the live page costs and how fast it is: a real server, a real browser, logs of any length.

A tick's processor time is stated as multiples of a fixed piece of work, timed in the same run; what a tick
does is counted by `tests/app/test_tick_work.py`.
"""

import operator
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import psutil
from playwright.sync_api import BrowserContext, Playwright, expect, sync_playwright

from harness.demo import SCENARIOS, write
from harness.store.folder import RunFolder
from tests.bench.figures import Figure
from tests.bench.fixed_work import fixed_work_ms
from tests.e2e.conftest import FLAGS
from tests.e2e.install_browser import find_chromium
from tests.e2e.serving import ROOT, Dashboard
from tests.e2e.tab import Tab
from tests.supervision import until

BATCHES, TICKS = 5, 6
"""Costs are told per tick, as the mean of each batch of ticks."""
CLICKS = 7
VISITS, PAINTS = 2, 5
"""A browser keeps a page's compiled script from the second visit on; before, opening takes longer."""
FIRST_VISITS = 5
"""Each with a browser that was never here: a profile of its own, nothing cached."""
SIZES = (1_000, 100_000, 10_000_000)
QUICK_SIZES = (1_000, 100_000)
PAINTED = 1_000_000
QUICK_PAINTED = 100_000
MOST_SERVER_WORKS = 4.0
"""Of a tick, as multiples of the fixed piece of work, timed around it."""
MOST_SENT_KB = 100.0
MOST_ON_SCREEN_MS = 1_500.0
MOST_PAINT_MS = 1_500.0
MOST_MARKER_MS = 2_000.0
MOST_GROWTH = 1.2
_BULK_LIMIT_S = 900.0
_IDLE_S = 5.0

_NOTE_ARRIVALS = """
window.arrivals = [];
const chart = document.querySelector(".ss-plot");
new MutationObserver(() => window.arrivals.push([Number(chart.dataset.lastStep), Date.now()]))
    .observe(chart, { attributeFilter: ["data-tick"] });
"""
_NOTE_PAINTS = """
window.pageUpMs = window.paintedMs = 0;
new MutationObserver(() => {
  if (!window.pageUpMs && document.querySelector(".st-key-live_header")) window.pageUpMs = performance.now();
  if (!window.paintedMs && document.querySelector(".ss-plot[data-ready=true] path.js-line"))
    window.paintedMs = performance.now();
}).observe(document, { subtree: true, childList: true, attributes: true, attributeFilter: ["data-ready"] });
"""


class Ticks(NamedTuple):
    """Cost of one tick of the live page at one length of the log, one value per batch of ticks."""

    steps: int
    server_ms: list[float]
    server_works: list[float]
    """The same as multiples of the fixed piece of work."""
    payload_bytes: list[float]
    browser_ms: list[float]
    on_screen_ms: list[float]
    """From the end of a step to its being drawn, one value a step."""


class Paints(NamedTuple):
    """Opening a long run, in milliseconds each time."""

    steps: int
    after_page_ms: list[float]
    """From the first output of the page to the first line drawn."""
    total_ms: list[float]
    """From the click on a link to the first line drawn."""
    switch_ms: list[float]
    """From its choice on a page that shows another run to its being drawn."""
    first_after_page_ms: list[float]
    """As `after_page_ms`, each time in a browser that was never here."""
    first_total_ms: list[float]


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """Measure everything; `folder` takes up to 3 GB of logs."""
    with (
        Dashboard(folder) as dashboard,
        sync_playwright() as playwright,
        _window(playwright, folder / "profile") as window,
    ):
        fresh = partial(_window, playwright)
        paints = _paints(dashboard, window, fresh, folder, QUICK_PAINTED if is_quick else PAINTED)
        ticks = [_ticks(dashboard, window, steps) for steps in (QUICK_SIZES if is_quick else SIZES)]
        marker_ms = _markers(dashboard, window)
    result = [figure for each in ticks for figure in _of_ticks(each)]
    result += [figure for each in ticks[1:] for figure in _against(each, ticks[0])]
    return [
        *result,
        *_of_paints(paints),
        Figure("click on AMP to its marker", marker_ms, "ms", MOST_MARKER_MS),
    ]


def _of_ticks(ticks: Ticks) -> Iterator[Figure]:
    where = f"tick at {ticks.steps:,} steps"
    yield Figure(f"{where}: server CPU", ticks.server_works, "× fixed work", MOST_SERVER_WORKS)
    yield Figure(f"{where}: server CPU in milliseconds", ticks.server_ms, "ms")
    yield Figure(f"{where}: sent", [size / 1e3 for size in ticks.payload_bytes], "kB", MOST_SENT_KB)
    yield Figure(f"{where}: browser, painting in software", ticks.browser_ms, "ms")
    yield Figure(f"{where}: end of a step to screen", ticks.on_screen_ms, "ms", MOST_ON_SCREEN_MS)


def _against(ticks: Ticks, short: Ticks) -> Iterator[Figure]:
    """Return how much a tick costs beside one of a short run, in this same measurement."""
    where = f"tick at {ticks.steps:,} over {short.steps:,} steps"
    works, sent = statistics.median(short.server_works), statistics.median(short.payload_bytes)
    yield Figure(f"{where}: server CPU", [cost / works for cost in ticks.server_works], "×", MOST_GROWTH)
    yield Figure(f"{where}: sent", [size / sent for size in ticks.payload_bytes], "×", MOST_GROWTH)


def _of_paints(paints: Paints) -> Iterator[Figure]:
    what = f"run of {paints.steps:,} steps"
    yield Figure(f"{what}: page up to first line", paints.after_page_ms, "ms", MOST_PAINT_MS)
    yield Figure(f"{what}: link clicked to first line", paints.total_ms, "ms")
    first = f"{what}, a browser that was never here"
    yield Figure(f"{first}: page up to first line", paints.first_after_page_ms, "ms", MOST_PAINT_MS)
    yield Figure(f"{first}: link clicked to first line", paints.first_total_ms, "ms")
    yield Figure(f"{what}: chosen to drawn, on an open page", paints.switch_ms, "ms", MOST_PAINT_MS)


def _window(playwright: Playwright, profile: Path) -> AbstractContextManager[BrowserContext]:
    """A browser with this profile; one that was never here where the folder is new."""
    return playwright.chromium.launch_persistent_context(
        profile, executable_path=find_chromium(), args=FLAGS, viewport={"width": 1440, "height": 900}
    )


@contextmanager
def _live_log(dashboard: Dashboard, steps: int) -> Iterator[tuple[RunFolder, Path]]:
    """A run with so many steps behind it that goes on; and the file with the ends of its later steps."""
    settings = SCENARIOS["steady"].settings
    folder = dashboard.home.create(f"bench {steps}", settings, time.time_ns())
    ends = folder.path / "ends.txt"
    command = [sys.executable, "-m", "tests.bench.live_log", str(folder.path), str(steps)]
    with ends.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output)
    try:
        until(ends.read_text, lambda text: "ready" in text, limit_s=_BULK_LIMIT_S)
        yield folder, ends
    finally:
        process.kill()
        process.wait()


class _Meter(NamedTuple):
    """One reading; the difference of two, by ticks, is a cost."""

    ticks: float
    elapsed_s: float
    server_s: float
    browser_s: float
    bytes_sent: float


def _ticks(dashboard: Dashboard, window: BrowserContext, steps: int) -> Ticks:
    server = psutil.Process(dashboard.pid)
    with _live_log(dashboard, steps) as (folder, ends):
        idle_share = _idle_share(server)
        tab = Tab(window, dashboard.url)
        tab.watch(folder.run_id)
        devtools = window.new_cdp_session(tab.page)
        devtools.send("Performance.enable")

        def read() -> _Meter:
            metrics = {m["name"]: m["value"] for m in devtools.send("Performance.getMetrics")["metrics"]}
            cpu = server.cpu_times()
            used_s = cpu.user + cpu.system - idle_share * time.monotonic()
            return _Meter(tab.tick, time.monotonic(), used_s, metrics["TaskDuration"], sum(tab.frames))

        tab.wait_for_ticks(3)
        tab.page.evaluate(_NOTE_ARRIVALS)
        readings, works_ms = [read()], []
        for _ in range(BATCHES):
            works_ms.append(fixed_work_ms())
            tab.wait_for_ticks(TICKS)
            readings.append(read())
        costs = [_Meter(*(b - a for a, b in zip(*pair, strict=True))) for pair in pairwise(readings)]
        latencies_ms = _latencies_ms(ends, tab.page.evaluate("window.arrivals"))
        tab.close()
    server_ms = [cost.server_s / cost.ticks * 1e3 for cost in costs]
    return Ticks(
        steps=steps,
        server_ms=server_ms,
        server_works=[cost_ms / work_ms for cost_ms, work_ms in zip(server_ms, works_ms, strict=True)],
        payload_bytes=[cost.bytes_sent / cost.ticks for cost in costs],
        browser_ms=[cost.browser_s / cost.ticks * 1e3 for cost in costs],
        on_screen_ms=latencies_ms,
    )


def _idle_share(server: psutil.Process) -> float:
    """The share of a core the server takes while nobody looks at a page."""
    before = server.cpu_times()
    time.sleep(_IDLE_S)
    after = server.cpu_times()
    return (after.user + after.system - before.user - before.system) / _IDLE_S


def _latencies_ms(ends: Path, arrivals: list[tuple[int, int]]) -> list[float]:
    """Return how long after its end each step was drawn, of those that ended while arrivals were noted."""
    result = []
    for line in ends.read_text(encoding="utf-8").splitlines()[1:]:
        step, ended_ns = map(int, line.split())
        drawn_ms = next((at_ms for last, at_ms in arrivals if last >= step), None)
        if drawn_ms is not None and step > arrivals[0][0]:
            result.append(drawn_ms - ended_ns / 1e6)
    return result


def _paints(
    dashboard: Dashboard,
    window: BrowserContext,
    fresh: Callable[[Path], AbstractContextManager[BrowserContext]],
    folder: Path,
    steps: int,
) -> Paints:
    run, other = (write("steady", dashboard.home, steps=count) for count in (steps, SIZES[0]))
    paints = Paints(steps, [], [], [], [], [])
    for visit in range(VISITS + PAINTS):
        tab = Tab(window, dashboard.url)
        after_page_ms, total_ms = _open(tab, run)
        if visit >= VISITS:
            paints.after_page_ms.append(after_page_ms)
            paints.total_ms.append(total_ms)
        tab.choose_run(other.request().name)
        tab.until(partial(_last_step, tab), partial(operator.eq, SIZES[0]))
        chosen_s = time.monotonic()
        tab.choose_run(run.request().name)
        tab.until(partial(_last_step, tab), partial(operator.eq, steps))
        paints.switch_ms.append((time.monotonic() - chosen_s) * 1e3)
        tab.close()
    for visit in range(FIRST_VISITS):
        with fresh(folder / f"profile {visit}") as stranger:
            tab = Tab(stranger, dashboard.url)
            after_page_ms, total_ms = _open(tab, run)
            paints.first_after_page_ms.append(after_page_ms)
            paints.first_total_ms.append(total_ms)
            tab.close()
    return paints


def _open(tab: Tab, run: RunFolder) -> tuple[float, float]:
    """Open the run's page: how long after the page was up, and after all, its first line was drawn, in ms."""
    tab.page.add_init_script(_NOTE_PAINTS)
    tab.watch(run.run_id)
    page_up_ms, painted_ms = tab.until(partial(tab.page.evaluate, "[pageUpMs, paintedMs]"), all)
    return painted_ms - page_up_ms, painted_ms


def _last_step(tab: Tab) -> int:
    return tab.last_step


def _markers(dashboard: Dashboard, window: BrowserContext) -> list[float]:
    """From each click on AMP to its marker, in milliseconds, of a real run that trains."""
    folder = dashboard.begin("bench markers")
    tab = Tab(window, dashboard.url)
    tab.watch(folder.run_id)
    tab.wait_for_ticks(3)
    result = []
    for click in range(CLICKS):
        values = len(tab.markers)
        clicked_s = time.monotonic()
        tab.choice("set_amp", "AMP off" if click % 2 else "bf16").click()
        tab.until(lambda: len(tab.markers), partial(operator.lt, values))
        result.append((time.monotonic() - clicked_s) * 1e3)
        expect(tab.choice("set_amp", "AMP off" if click % 2 else "bf16")).to_be_checked()
    tab.close()
    return result

"""Measure the list of a thousand runs: in a new process, again, from the shell, and on the Runs page."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from playwright.sync_api import expect, sync_playwright

from harness.store.home import Home
from tests.bench.figures import Figure
from tests.e2e.conftest import FLAGS
from tests.e2e.install_browser import find_chromium
from tests.e2e.serving import ROOT, Dashboard
from tests.e2e.tab import Tab
from tests.many_runs import write_many

RUNS, QUICK_RUNS = 1_000, 200
REPEATS = 7
MOST_COLD_MS, MOST_SHELL_MS = 300.0, 500.0
_TICK_S, _TICKS = 5.0, 6
_LIST = """import sys, time
from pathlib import Path
from harness.store.home import Home
from harness.supervisor import Supervisor
supervisor = Supervisor(Home(Path(sys.argv[1])))
for _ in range(2):
    began = time.perf_counter()
    assert len(supervisor.entries()) == int(sys.argv[2])
    print((time.perf_counter() - began) * 1e3)
"""


def figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """Yield each figure once it is measured."""
    count = QUICK_RUNS if is_quick else RUNS
    dashboard = Dashboard(folder)
    write_many(dashboard.home, count)
    name = f"runs, {count:,}"
    yield Figure(f"{name}: first list of a home", [_list_ms(dashboard.home, count)[0]], "ms")
    pairs = [_list_ms(dashboard.home, count) for _ in range(REPEATS)]
    yield Figure(f"{name}: list in a new process, without imports", [p[0] for p in pairs], "ms", MOST_COLD_MS)
    yield Figure(f"{name}: list again", [pair[1] for pair in pairs], "ms")
    shell_ms = [_shell_ms(dashboard.home) for _ in range(REPEATS)]
    yield Figure(f"{name}: `stepscope list --json`, whole process", shell_ms, "ms", MOST_SHELL_MS)
    yield Figure(f"{name}: Runs page, server CPU per tick beside a live run", _tick_ms(dashboard), "ms")


def _list_ms(home: Home, count: int) -> list[float]:
    words = [sys.executable, "-c", _LIST, str(home.path), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    return [float(line) for line in done.stdout.split()]


def _shell_ms(home: Home) -> float:
    words = [str(Path(sys.executable).with_name("stepscope")), "list", "--json"]
    environ = os.environ | {"STEPSCOPE_HOME": str(home.path)}
    began = time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True, env=environ)
    return (time.perf_counter() - began) * 1e3


def _tick_ms(dashboard: Dashboard) -> list[float]:
    """Return the processor time of the server per tick of the Runs page, the mean of each few ticks."""
    with sync_playwright() as playwright, dashboard:
        dashboard.begin()
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        with browser.new_context() as window:
            tab = Tab(window, dashboard.url)
            tab.open("runs")
            expect(tab.page.get_by_test_id("stDataFrame").first).to_be_visible(timeout=60_000)
            server = psutil.Process(dashboard.pid)
            values = []
            time.sleep(2 * _TICK_S)
            for _ in range(_TICKS):
                before = server.cpu_times()
                time.sleep(_TICK_S)
                after = server.cpu_times()
                values.append((after.user + after.system - before.user - before.system) * 1e3)
            tab.close()
        browser.close()
    return values

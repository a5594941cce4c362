"""A person's own script in a browser: shown by its command, changed while it trains, and stopped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect

from harness.records.run import RunState
from tests.e2e.serving import Dashboard
from tests.e2e.tab import Tab
from tests.supervision import PATIENCE_S, ROOT, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "scripts" / "image_classifier.py"
# Epochs without end, and seconds to wait after a step: the processor is left to the browser.
ARGUMENTS = ("100000", "0.02")
STOPPED_CODE = 130


def test_a_script_changes_and_stops_from_the_browser(tab: Tab, dashboard: Dashboard) -> None:
    command = [sys.executable, "-m", "harness", "run", "--name", "mine", str(SCRIPT), *ARGUMENTS]
    environ = os.environ | {"STEPSCOPE_HOME": str(dashboard.home.path)}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=quiet, stderr=quiet) as process:
        try:
            (folder,) = until(dashboard.home.runs, bool)
            dashboard.wait_for(folder, RunState.RUNNING)
            tab.watch(folder.run_id)
            expect(tab.badge("torch")).to_contain_text("image_classifier.py")
            tab.choice("set_amp", "bf16").click()
            tab.badge("AMP bf16 · applied at step").wait_for()
            tab.page.get_by_text("Run details").click()
            expect(tab.key("script_facts")).to_contain_text(str(ROOT))
            tab.button("stop").click()
            tab.badge("stopped").wait_for()
            assert process.wait(PATIENCE_S) == STOPPED_CODE
        finally:
            process.kill()

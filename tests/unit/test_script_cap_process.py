"""A memory cap set on a running script from the shell, and a batch that exceeds it."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.analysis.oom.report import OomPhase, OomVerdict, report_from_json
from harness.records.run import RunState
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.supervision import until
from tests.warm_start import run_harness

SCRIPT = Path(__file__).parents[1] / "scripts" / "wide_layers.py"


def newest_peaks(folder: RunFolder) -> int:
    """The number of steps with a peak of their own under the newest settings, as far as they are written."""
    with LogReader(folder.log) as log:
        newest = log.settings_history()[-1].version
        rows = log.last_steps(1_000)
    return sum(row.peak_allocated_bytes is not None and row.settings_version == newest for row in rows)


@pytest.mark.slow
@pytest.mark.long
def test_a_batch_over_the_cap_ends_a_script_with_its_line_and_the_batch_that_would_have_fitted(
    tmp_path: Path,
) -> None:
    home = ["--home", str(tmp_path)]

    def change(value: str) -> None:
        assert run_harness("set", "wide", *home, "--wait", "60", value).returncode == 0

    # Not forked: the memory of its own heap is measured.
    command = [sys.executable, "-m", "harness", "run", *home, "--name", "wide", str(SCRIPT)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "training\n"
        change("memory_cap_gib=0.5")
        (folder,) = Home(tmp_path).runs()
        for size in (16, 256):  # The peak of another batch is estimated from these.
            change(f"batch_size={size}")
            until(lambda: newest_peaks(folder), lambda peaks: peaks >= 3)
        change("batch_size=4096")
        _, printed = script.communicate(timeout=120)
        assert (script.returncode, printed.count("Traceback")) == (1, 1)
    assert "harness/" not in printed
    with LogReader(folder.log) as log:
        assert log.run().state == RunState.OUT_OF_MEMORY
        (row,) = log.memory.oom_reports()
    report = report_from_json(row.report)
    request = report.facts.request
    assert (report.verdict, request.phase) == (OomVerdict.CAP, OomPhase.FORWARD)
    assert (request.module or "").startswith(("0", "1"))
    assert "wide_layers.py" in (request.site or "")
    assert report.facts.batch_size == 4096
    texts = [one.text for one in report.counterfactuals]
    assert any("would have peaked at" in text for text in texts), texts

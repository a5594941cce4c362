"""The batch size of a script in a process of its own, changed from the shell."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.store.home import Home
from harness.store.reader import LogReader

SCRIPT = Path(__file__).parents[1] / "scripts" / "counted_epochs.py"


def harness(*words: str) -> list[str]:
    return [sys.executable, "-m", "harness", *words]


@pytest.mark.slow
def test_the_shell_changes_the_batch_size_of_a_running_script_and_no_sample_is_lost(tmp_path: Path) -> None:
    home = ["--home", str(tmp_path)]
    script = subprocess.Popen(
        harness("run", *home, "--name", "numbers", str(SCRIPT)), stdout=subprocess.PIPE, text=True
    )
    with script:
        assert script.stdout is not None
        first = script.stdout.readline()
        change = subprocess.run(
            harness("set", "numbers", "batch_size=64", "--wait", "60", *home),
            capture_output=True,
            text=True,
            timeout=120,
        )
        rest, _ = script.communicate(timeout=120)
    assert (script.returncode, change.returncode) == (0, 0), change.stderr
    epochs = [line.split(" ", 1) for line in (first + rest).splitlines()]
    assert {is_whole for is_whole, _ in epochs} == {"True"}
    sizes = [size for _, epoch in epochs for size in json.loads(epoch)]
    assert json.loads(epochs[-1][1]) == [64, 64, 64, 8]
    (folder,) = Home(tmp_path).runs()
    with LogReader(folder.log) as log:
        step = log.settings_history()[-1].step
        samples = [row.samples for row in log.last_steps(100_000)]
    assert f"applied at step {step:,}: Batch size 8 → 64" in change.stdout
    assert samples == sizes
    assert set(sizes[: step - 1]) == {8}
    assert sizes[step - 1] == 64 or sizes[step] == 64

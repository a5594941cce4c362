"""The batch size of a script in a process of its own, changed from the shell."""

import json
from pathlib import Path

import pytest

from harness.store.home import Home
from harness.store.reader import LogReader
from tests.warm_start import PythonProcess, run_harness

SCRIPT = Path(__file__).parents[1] / "scripts" / "counted_epochs.py"


@pytest.mark.slow
def test_the_shell_changes_the_batch_size_of_a_running_script_and_no_sample_is_lost(tmp_path: Path) -> None:
    home = ["--home", str(tmp_path)]
    with PythonProcess("-m", "harness", "run", *home, "--name", "numbers", str(SCRIPT)) as script:
        first = script.stdout.readline()
        change = run_harness("set", "numbers", "batch_size=64", "--wait", "60", *home)
        rest, _ = script.communicate(timeout=120)
        assert (script.wait(), change.returncode) == (0, 0), change.stderr
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

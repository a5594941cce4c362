"""A script in a process of its own that catches the stop and trains on, stopped from the shell."""

import signal
from pathlib import Path

import pytest

from harness.records.run import RunState
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.supervision import until
from tests.warm_start import PythonProcess, run_harness

_SCRIPT = """
import time
import torch

weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.01)
print("begins", flush=True)
while True:
    try:
        while True:
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("goes on", flush=True)
"""


@pytest.mark.slow
def test_a_script_that_catches_a_stop_is_running_again_and_ends_at_the_second_stop(tmp_path: Path) -> None:
    script, home = tmp_path / "train.py", ["--home", str(tmp_path / "home")]
    script.write_text(_SCRIPT)
    supervisor = Supervisor(Home(tmp_path / "home"))
    with PythonProcess("-m", "harness", "run", *home, "--name", "stubborn", str(script)) as process:
        assert process.stdout.readline() == "begins\n"
        (folder,) = Home(tmp_path / "home").runs()
        until(lambda: supervisor.status(folder).state, lambda state: state is RunState.RUNNING)
        first = run_harness("stop", "stubborn", *home)
        assert (first.returncode, first.stdout, process.stdout.readline()) == (1, "", "goes on\n")
        assert "its script caught the KeyboardInterrupt of the stop. Stop it again" in first.stderr
        assert supervisor.status(folder).state is RunState.RUNNING
        second = run_harness("stop", "stubborn", *home)
        assert process.stdout.readline() == "goes on\n"
        assert process.wait() == -signal.SIGTERM
    assert second.returncode == 0
    assert "the script caught this stop too, sending SIGTERM to the process group" in second.stderr
    assert supervisor.status(folder).state is RunState.KILLED

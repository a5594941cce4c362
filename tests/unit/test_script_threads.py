"""Threads of a script: errors are printed as without a watch, a stop in one line, and all steps count."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from harness.attach.guard import ScriptGuard
from harness.records.run import RunState
from tests.api_factories import log_of
from tests.warm_start import PythonProcess, run_harness

_SCRIPT = """
import sys
import threading
import time
import torch


class Net(torch.nn.Linear):
    def forward(self, inputs):
        if sys.argv[1] == "fails" and step == 5:
            raise ValueError("no step 5")
        return super().forward(inputs)


def train():
    global step
    model = Net(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1_000):
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        if step == 3:
            print("trains", flush=True)


thread = threading.Thread(target=train, name="trainer")
thread.start()
thread.join()
print("joined", flush=True)
"""

_MAIN_ENDS_FIRST = """
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
import torch


def train():
    has_ended.wait()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(7):
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
    print("trained")


has_ended = threading.Event()
idle = ThreadPoolExecutor(1)
idle.submit(print, "submitted").result()
threading.Thread(target=train).start()
threading.Timer(0.5, has_ended.set).start()
sys.exit(0)
"""


@pytest.mark.slow
def test_a_training_that_outlives_the_main_module_has_all_its_steps(tmp_path: Path) -> None:
    script, home = tmp_path / "train.py", tmp_path / "home"
    script.write_text(_MAIN_ENDS_FIRST)
    watched = run_harness("run", "--home", str(home), str(script))
    assert (watched.returncode, watched.stdout) == (0, "submitted\ntrained\n")
    with log_of(home) as log:
        assert (log.run().state, log.last_steps(1)[0].step) == (RunState.FINISHED, 7)


@pytest.mark.long
def test_an_error_in_a_thread_has_the_traceback_of_the_bare_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    environ = os.environ | {"STEPSCOPE_HOME": str(tmp_path / "home")}
    bare, watched = (
        subprocess.run(
            [sys.executable, *words, str(script), "fails"],
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        for words in ([], ["-m", "harness", "run"])
    )
    assert bare.stderr.endswith("ValueError: no step 5\n")
    _, _, printed = watched.stderr.partition("\n")  # After the line that names the run.
    assert (watched.stdout, printed) == (bare.stdout, bare.stderr)
    with log_of(tmp_path / "home") as log:
        assert (log.run().state, log.run().state_message) == (RunState.FAILED, "ValueError: no step 5")


def test_a_thread_with_the_identifier_of_the_one_that_trained_is_another_one() -> None:
    guard = ScriptGuard()
    training = Thread(target=guard.claim)
    training.start()
    training.join()
    later = Thread(target=guard.follows)
    later._ident = training.ident  # type: ignore[attr-defined]  # the system gives it out again
    assert guard.is_claimed_by(training)
    assert not guard.is_claimed_by(later)
    assert not guard.is_claimed_by(None)


@pytest.mark.slow
def test_a_stop_of_a_training_in_a_thread_is_one_line(tmp_path: Path) -> None:
    script, home = tmp_path / "train.py", ["--home", str(tmp_path / "home")]
    script.write_text(_SCRIPT)
    words = ["run", *home, "--name", "threaded", str(script), "runs"]
    with PythonProcess("-m", "harness", *words) as process:
        assert process.stdout.readline() == "trains\n"
        stopped = run_harness("stop", "threaded", *home)
        assert (process.stdout.readline(), stopped.returncode) == ("joined\n", 0)
        _, messages = process.communicate(timeout=60)
    first, second = messages.splitlines()
    assert "is run threaded" in first
    assert second == "stepscope: Stopped by request from shell."

"""The end of a process with the two lines of Stepscope, and of its run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.run import EventKind, RunState
from tests.api_factories import events, folder_of, log_of
from tests.warm_start import run_harness

_TRAINING = """
import sys
import threading
import time
import torch
import stepscope

weight = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)


def train(batches):
    for batch in batches:
        optimizer.zero_grad()
        weight(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
"""
_WATCHED = "run = stepscope.watch(weight, optimizer)\ntrain(run.steps(range(4)))\n"
_IN_MAIN = (
    "def main(code):\n    train(stepscope.watch(weight, optimizer).steps(range(4)))\n    return code\n\n"
)
_CAUGHT_IN_MAIN = """
def main(code):
    try:
        sys.exit(2)
    except SystemExit:
        train(stepscope.watch(weight, optimizer).steps(range(4)))
    return code

"""
_UNKNOWN = "The script raised SystemExit itself, not by sys.exit: its exit code is not known."
_OWN_HOOK = "sys.excepthook = lambda *error: print(error[1])\n1 / 0\n"
_IN_A_THREAD = """
def work():
    train(stepscope.watch(weight, optimizer).steps(range(4)))
    raise ValueError("no step 5")

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""
_CAUGHT = "try:\n    sys.exit(3)\nexcept SystemExit:\n    print('goes on')\n"
_PASSED_ON = "try:\n    sys.exit(3)\nfinally:\n    print('cleaned up')\n"
_FINISHED = "The script ended after 4 steps."
# Each has a process of its own, with an import of torch.
_LONG = pytest.mark.long


# A process of its own each: it is Python's own end that counts.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "code", "state", "message"),
    [
        pytest.param(_WATCHED + "sys.exit(3)", 3, RunState.FAILED, "The script exited with 3.", marks=_LONG),
        pytest.param(
            _WATCHED + "sys.exit('no data')",
            1,
            RunState.FAILED,
            "The script exited with 'no data'.",
            marks=_LONG,
        ),
        (_WATCHED + _PASSED_ON, 3, RunState.FAILED, "The script exited with 3."),
        pytest.param(_WATCHED + "sys.exit()", 0, RunState.FINISHED, _FINISHED, marks=_LONG),
        pytest.param(_IN_MAIN + "sys.exit(main(0))", 0, RunState.FINISHED, _FINISHED, marks=_LONG),
        pytest.param(
            _CAUGHT_IN_MAIN + "raise SystemExit(main(0))", 0, RunState.STOPPED, _UNKNOWN, marks=_LONG
        ),
        pytest.param(
            _IN_MAIN + "sys.exit(main(3))", 3, RunState.FAILED, "The script exited with 3.", marks=_LONG
        ),
        pytest.param(_WATCHED + _CAUGHT, 0, RunState.FINISHED, _FINISHED, marks=_LONG),
        pytest.param(_WATCHED + "raise SystemExit(3)", 3, RunState.STOPPED, _UNKNOWN, marks=_LONG),
        pytest.param(
            _WATCHED + _OWN_HOOK, 1, RunState.FAILED, "ZeroDivisionError: division by zero", marks=_LONG
        ),
        pytest.param(_IN_A_THREAD, 0, RunState.FAILED, "ValueError: no step 5", marks=_LONG),
    ],
)
def test_the_end_of_the_process_is_the_outcome(
    tmp_path: Path, script: str, code: int, state: RunState, message: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _TRAINING + script],
        env=os.environ | {"STEPSCOPE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    with log_of(tmp_path) as log:
        run = log.run()
    assert (done.returncode, run.state, run.state_message) == (code, state, message), done.stderr
    for event in events(tmp_path, EventKind.ERROR):
        assert "stepscope" not in "".join(json.loads(event.detail)["last_lines"][1:-1]), event.detail


@pytest.mark.long
@pytest.mark.parametrize(
    "script",
    [
        "stepscope.watch(weight, optimizer)\ntrain_on()\n",
        pytest.param("with stepscope.watch(weight, optimizer):\n    train_on()\n", marks=_LONG),
        pytest.param(
            "run = stepscope.watch(weight, optimizer)\ntry:\n    train_on()\nfinally:\n    run.close()\n",
            marks=_LONG,
        ),
    ],
    ids=["plain", "block", "closed"],
)
def test_a_stop_outside_of_run_steps_is_one_line(tmp_path: Path, script: str) -> None:
    training = """
def ticks():
    while True:
        time.sleep(0.01)
        print("trains", flush=True)
        yield


def train_on():
    try:
        train(ticks())
    finally:
        print("cleaned up", flush=True)

"""
    with subprocess.Popen(
        [sys.executable, "-c", _TRAINING + training + script],
        env=os.environ | {"STEPSCOPE_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trains\n"
        run_harness("stop", folder_of(tmp_path).run_id, "--home", str(tmp_path))
        printed, messages = process.communicate(timeout=60)
    assert printed.splitlines()[-1] == "cleaned up"
    _, *lines = messages.splitlines()
    assert (lines, process.returncode) == (["stepscope: Stopped by request from shell."], 130)
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.STOPPED

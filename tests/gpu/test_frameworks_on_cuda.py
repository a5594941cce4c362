"""Scripts of frameworks on a GPU: the same numbers as without watch, each step counted and timed by the
device; and requests from outside while a script trains."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from harness.errors import LogMissingError
from harness.records.run import RunState
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.attach_factories import LAST, SCRIPTS, recorded

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

PACKAGES = {"hf_trainer": "transformers", "lightning_module": "lightning", "accelerate_loop": "accelerate"}
_PATIENCE_S = 120.0
Record = Callable[[str, object], None]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_framework_trains_as_without_watch_and_its_steps_are_timed_by_the_gpu(
    tmp_path: Path, name: str, record_property: Record
) -> None:
    pytest.importorskip(PACKAGES[name])
    script = str(SCRIPTS / f"{name}.py")
    bare = run([script, "cuda"], tmp_path)
    watched = run(["-m", "harness", "run", script, "cuda"], tmp_path)
    assert (bare.returncode, watched.returncode) == (0, 0), bare.stderr + watched.stderr
    assert watched.stdout == bare.stdout
    (folder,) = Home(tmp_path).runs()
    log = recorded(folder)
    steps = int(bare.stdout.rsplit("steps ", 1)[1])
    assert (log.run.state, [row.step for row in log.steps]) == (RunState.FINISHED, list(range(1, steps + 1)))
    timed = [row for row in log.steps if row.device_step_ns is not None]
    record_property("steps timed by the device", f"{len(timed)} of {steps}")
    record_property("samples per step", sorted({row.samples for row in log.steps}, key=str))
    assert len(timed) >= 0.9 * steps
    assert all(row.samples and row.allocated_bytes for row in log.steps)


def test_requests_from_outside_change_a_training_on_the_gpu(tmp_path: Path, record_property: Record) -> None:
    """With the commands that a person types, of a script that knows nothing of them."""
    environ = os.environ | {"STEPSCOPE_HOME": str(tmp_path)}
    script = [
        sys.executable,
        "-m",
        "harness",
        "run",
        str(SCRIPTS / "on_a_device.py"),
        "cuda",
        "100000",
        "timed",
    ]
    process = subprocess.Popen(script, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        home = Home(tmp_path)
        await_step(home, 200)
        requests = (
            ["set", "amp=bf16"],
            ["set", "batch_size=256", "pin_memory=on"],
            ["set", "num_workers=2"],
            ["do", "profile"],
            ["do", "snapshot"],
            ["set", "memory_cap_gib=8"],
            ["stop"],
        )
        answers = {}
        for words in requests:
            verb, rest = words[0], words[1:]
            done = run(["-m", "harness", verb, "on_a_device-1", *rest], tmp_path)
            answers[" ".join(words)] = (
                done.returncode,
                (done.stdout + done.stderr).strip().splitlines()[-1:],
            )
        stdout, stderr = process.communicate(timeout=_PATIENCE_S)
    finally:
        process.kill()
    record_property("answers", json.dumps(answers))
    record_property("the script's end", f"exit code {process.returncode}: {stdout[-200:]} {stderr[-600:]}")
    (folder,) = home.runs()
    with LogReader(folder.log) as log:
        acks = {row.command_id: (row.state, row.message) for row in log.acks()}
        samples = [row.samples for row in log.steps(1, LAST)]
        state = log.run().state
    record_property("requests", json.dumps(list(acks.values())))
    assert [code for code, _ in answers.values()] == [0] * len(requests)
    assert {state for state, _ in acks.values()} == {"applied"}, acks
    assert (samples[0], samples[-1], state) == (512, 256, RunState.STOPPED)


def run(arguments: list[str], home: Path) -> "subprocess.CompletedProcess[str]":
    environ = os.environ | {"STEPSCOPE_HOME": str(home)}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        timeout=_PATIENCE_S,
    )


def await_step(home: Home, step: int) -> None:
    """Wait until the only run has recorded this step."""
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s:
        for folder in home.runs():
            with suppress(LogMissingError), LogReader(folder.log) as log:
                if (log.extent().last or 0) >= step:
                    return
        time.sleep(0.2)
    raise TimeoutError(f"step {step} was not reached")

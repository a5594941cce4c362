"""Scripts that capture CUDA graphs: watching disturbs no capture, and steps are followed also in replays."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.records.run import RunState
from harness.store.home import Home
from tests.attach_factories import SCRIPTS, recorded

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

SCRIPT = str(SCRIPTS / "cuda_graph.py")
STEPS = 200
Record = Callable[[str, object], None]


def run(arguments: list[str], home: Path) -> "subprocess.CompletedProcess[str]":
    environ = os.environ | {"STEPSCOPE_HOME": str(home)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environ, timeout=150
    )


@pytest.mark.parametrize("how", ["whole", "callables", "compile"])
def test_a_script_with_graphs_trains_as_without_watch_and_its_steps_are_followed(
    tmp_path: Path, how: str, record_property: Record
) -> None:
    bare = run([SCRIPT, how, str(STEPS)], tmp_path)
    watched = run(["-m", "harness", "run", SCRIPT, how, str(STEPS)], tmp_path)
    assert bare.returncode == 0, bare.stderr[-1000:]
    assert watched.returncode == 0, watched.stderr[-2000:]
    assert watched.stdout == bare.stdout
    assert "Traceback" not in watched.stderr
    (folder,) = Home(tmp_path).runs()
    log = recorded(folder)
    steps = int(bare.stdout.rsplit("steps ", 1)[1])
    record_property("events", "; ".join(f"{one.label}: {one.message}" for one in log.events))
    record_property("steps", f"{len(log.steps)} of {steps}")
    timed = [row for row in log.steps if row.device_step_ns is not None]
    record_property("steps timed by the device", len(timed))
    losses = [float.fromhex(line.split()[1]) for line in bare.stdout.splitlines() if line.startswith("loss")]
    record_property("losses", f"{[row.loss for row in log.steps][-3:]} of {losses[-3:]}")
    assert (log.run.state, len(log.steps)) == (RunState.FINISHED, steps)
    assert len(timed) >= 0.9 * steps
    assert {row.samples for row in log.steps[-STEPS:]} == {64}
    assert [row.loss for row in log.steps[-50:]] == pytest.approx(losses[-50:])


def test_a_capture_while_the_watch_polls_its_events_is_valid(tmp_path: Path) -> None:
    """Several in a row: the poll has to meet one of them."""
    for number in range(3):
        watched = run(["-m", "harness", "run", SCRIPT, "whole", "20"], tmp_path / str(number))
        assert watched.returncode == 0, watched.stderr[-2000:]

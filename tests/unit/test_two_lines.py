"""A script with the two lines of Stepscope, in a process of its own."""

import os
import subprocess
from pathlib import Path

import pytest

from harness.records.run import RunState
from tests.api_factories import folder_of, log_of, scalar
from tests.warm_start import run_python

_SCRIPT = Path(__file__).parents[1] / "scripts" / "two_lines.py"


def _run(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return run_python(*words, environ=os.environ | {"STEPSCOPE_HOME": str(home)})


@pytest.mark.slow
def test_under_stepscope_run_the_script_joins_the_run(tmp_path: Path) -> None:
    done = _run(tmp_path, "-m", "harness", "run", str(_SCRIPT))
    assert done.returncode == 0, done.stderr
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.FINISHED
        assert len(log.last_steps(100)) == 16
    losses = [float(line) for line in done.stdout.split()]
    assert [value for _, value in scalar(tmp_path, "loss")] == losses
    assert scalar(tmp_path, "epoch") == [(8, 0.0), (16, 1.0)]


@pytest.mark.slow
def test_an_error_outside_of_a_block_is_the_outcome_and_the_exit_code(tmp_path: Path) -> None:
    done = _run(tmp_path, str(_SCRIPT), "fail")
    assert done.returncode == 1
    assert done.stderr.endswith("RuntimeError: It fails.\n")
    assert f"stepscope: this is run two_lines-1 ({folder_of(tmp_path).run_id})" in done.stderr
    assert folder_of(tmp_path).request().script is not None
    with log_of(tmp_path) as log:
        assert (log.run().state, log.run().state_message) == (RunState.FAILED, "RuntimeError: It fails.")
        assert len(log.last_steps(100)) == 16

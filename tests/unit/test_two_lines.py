"""A script with the two lines of Stepscope, in a process of its own."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import stepscope
from harness.attach.launch import Script, attaching, origin_of
from harness.records.run import RunState
from harness.store.home import Home
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


def warnings_of_joining(runs: Path, **values: Any) -> list[str]:
    """The warnings in a run named "first" that `stepscope.watch`, with these values, has joined."""
    origin = origin_of(Script(str(_SCRIPT), (), is_module=False))
    folder = Home(runs).create_for_script("first", origin, 0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attaching(folder, os.environ) as attachment:
        attachment.attach()
        with stepscope.watch(model, optimizer, **values):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        attachment.end(None)
    with log_of(runs) as log:
        return [one.message for _, one in log.events() if one.label == "watch joined this run"]


def test_a_name_or_a_home_without_effect_is_a_warning(tmp_path: Path) -> None:
    (warning,) = warnings_of_joining(tmp_path, name="second", home=tmp_path / "elsewhere")
    assert "name='second' and home=" in warning


def test_the_name_and_the_home_of_the_run_are_none(tmp_path: Path) -> None:
    assert not warnings_of_joining(tmp_path, name="first", home=tmp_path)


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

"""Errors of the watch in the process of a script."""

from pathlib import Path

import pytest
import torch
from torch import nn

from harness.records.run import RunState
from harness.watch.controller import StepController
from tests.session_factories import a_session


def fail(*_arguments: object) -> None:
    raise OSError("no space left")


def test_an_error_while_the_script_is_left_alone_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The action that has failed may fail again where it is undone."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()

    with a_session(tmp_path) as attached:
        step()
        with monkeypatch.context() as patch:
            patch.setattr(StepController, "close", fail)
            attached.guard.run(fail)
        step()
    assert attached.guard.message is not None
    assert "During handling of the above exception" in capsys.readouterr().err
    with attached.log() as log:
        assert (log.extent().steps, log.run().state) == (1, RunState.FINISHED)

"""Errors of a script that have no text to give: they are its outcome like others."""

from pathlib import Path

import pytest
import torch
from torch import nn

from harness.records.run import RunState
from tests.attach_factories import attached, recorded


class UnprintableError(RuntimeError):
    """An error with a text that cannot be made."""

    def __str__(self) -> str:
        raise AttributeError("no text")


@pytest.mark.parametrize("steps", [0, 8])
def test_an_error_without_a_text_is_recorded_all_the_same(tmp_path: Path, steps: int) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(tmp_path) as watched:
        for _ in range(steps):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
        watched.session.end(UnprintableError())
        assert watched.guard.message is None
    run = recorded(watched.folder).run
    assert (run.state, run.state_message) == (
        RunState.FAILED,
        "UnprintableError: <exception str() failed>",
    )

"""An error of the learning-rate factor, within a step of a script, is none of the script's."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.session_factories import a_session


class Unscalable(float):
    """A rate that fails where it is multiplied."""

    def __mul__(self, _other: object) -> float:
        raise ArithmeticError("no factor")


@pytest.mark.parametrize("has_hook", [False, True])
def test_a_rate_that_cannot_be_multiplied_leaves_the_script_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], has_hook: bool
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if has_hook:
        optimizer.register_step_post_hook(lambda *_: None)
    before = model.weight.detach().clone()
    with a_session(tmp_path) as attached:
        for step in range(6):
            if step == 2:
                attached.ask(learning_rate_factor=0.5)
                optimizer.param_groups[0]["lr"] = Unscalable(0.5)
            model(torch.ones(1, 2)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert attached.guard.message is not None
    assert "no factor" in attached.guard.message
    assert "ArithmeticError: no factor" in capsys.readouterr().err
    assert torch.allclose(model.weight, before - 6 * 0.5)
    assert len(optimizer._optimizer_step_pre_hooks) == 0
    assert len(optimizer._optimizer_step_post_hooks) == has_hook

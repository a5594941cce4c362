"""Test that an update without a gradient is no step, as where a script draws the schedule of its rates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import StepLR

from tests.attach_factories import attached, steps_of

_DRAWN, _STEPS = 5, 4
_INPUTS = torch.ones(8, 3)


class Drift(torch.optim.Optimizer):
    """An optimizer of a script that needs no gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model.parameters(), {})

    def step(self, closure: Any = None) -> Any:
        """Move every parameter by the same amount."""
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(0.01)


def draw(optimizer: torch.optim.Optimizer) -> None:
    """Read the rates of a schedule, with a step of the optimizer before each as torch wants it."""
    schedule = StepLR(optimizer, step_size=2)
    for _ in range(_DRAWN):
        optimizer.step()
        schedule.step()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = _STEPS) -> None:
    """Take some steps, and leave no gradients."""
    for _ in range(steps):
        model(_INPUTS).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture
def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer."""
    model = nn.Linear(3, 1)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def test_a_schedule_that_is_drawn_before_the_training_has_no_steps(
    tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    def script() -> None:
        draw(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0))
        train(*trained)

    run = steps_of(tmp_path, script)
    assert [row.samples for row in run.steps] == [len(_INPUTS)] * _STEPS


def test_nor_has_one_of_the_optimizer_that_trains_between_its_steps(
    tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    def script() -> None:
        for _ in range(3):
            draw(trained[1])
            train(*trained)

    assert len(steps_of(tmp_path, script).steps) == 3 * _STEPS


def test_nor_has_one_through_a_scaler_that_is_disabled(
    tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def script() -> None:
        for _ in range(3):
            scaler.step(trained[1])
            train(*trained)

    assert len(steps_of(tmp_path, script).steps) == 3 * _STEPS


def test_an_optimizer_of_a_script_that_needs_no_gradients_makes_steps(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = Drift(model)

    def script() -> None:
        for _ in range(_STEPS):
            optimizer.step()

    assert len(steps_of(tmp_path, script).steps) == _STEPS


def test_gradients_that_a_script_assigns_make_a_step(
    tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    model, optimizer = trained

    def script() -> None:
        for _ in range(_STEPS):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            optimizer.zero_grad()

    assert len(steps_of(tmp_path, script).steps) == _STEPS


def test_a_script_goes_on_if_its_optimizer_cannot_be_examined(
    tmp_path: Path, trained: tuple[nn.Module, torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any) -> bool:
        raise ValueError("no such group")

    monkeypatch.setattr("harness.attach.entries.changes_nothing", fail)
    model, optimizer = trained
    before = [weight.detach().clone() for weight in model.parameters()]
    with attached(tmp_path) as (session, _, guard):
        optimizer.step()
        train(model, optimizer)
        session.end(None)
    assert guard.message is not None
    assert "no such group" in guard.message
    assert not any(map(torch.equal, model.parameters(), before))

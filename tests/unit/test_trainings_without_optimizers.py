"""Several trainings of a script that updates its parameters without an optimizer of torch."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import steps_of

_STEPS = 5


def _drop_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def _clear_by_module(model: nn.Module) -> None:
    model.zero_grad()


def _keep_gradients(_model: nn.Module) -> None:
    pass


def _update(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.sub_(0.05 * parameter.grad)


@pytest.mark.parametrize("keeps_models", [False, True])
@pytest.mark.parametrize("clear", [_drop_gradients, _clear_by_module, _keep_gradients])
def test_each_model_that_is_trained_in_turn_makes_steps(
    tmp_path: Path, clear: Callable[[nn.Module], None], keeps_models: bool
) -> None:
    loader = DataLoader(TensorDataset(torch.randn(_STEPS * 4, 3)), 4)
    held_out = torch.randn(7, 3)
    models: list[nn.Module] = []
    losses: list[Tensor] = []

    def train() -> None:
        for _ in range(3):
            model = nn.Linear(3, 2)
            for (inputs,) in loader:
                loss = model(inputs).square().mean()
                clear(model)
                loss.backward()
                _update(model)
                losses.append(loss.detach())
            model.eval()
            with torch.no_grad():
                model(held_out)
            if keeps_models:
                models.append(model)

    log = steps_of(tmp_path, train)
    assert log.samples == [4] * (3 * _STEPS)
    assert [row.loss for row in log.steps] == pytest.approx([float(loss) for loss in losses])


def test_a_generator_that_is_called_after_the_first_gradients_ends_no_step(tmp_path: Path) -> None:
    generator, critic = nn.Linear(2, 3), nn.Linear(3, 1)

    def train() -> None:
        for _ in range(_STEPS):
            generator.zero_grad()
            critic.zero_grad()
            critic(torch.randn(4, 3)).mean().backward()
            critic(generator(torch.randn(4, 2))).mean().backward()
            for model in (generator, critic):
                _update(model)

    assert len(steps_of(tmp_path, train).samples) == _STEPS

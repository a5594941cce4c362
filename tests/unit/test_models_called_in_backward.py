"""Models that are called with gradients only within the backward pass, as by an adjoint of an ODE."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.attach_factories import steps_of


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, time: Tensor, state: Tensor) -> Tensor:
        moved: Tensor = self.layer(state) * time
        return moved


def ends(field: Field, state: Tensor) -> Tensor:
    """Return where two steps of the ODE lead."""
    for time in (0.0, 0.5):
        state = state + field(torch.tensor(time), state)
    return state


class Adjoint(torch.autograd.Function):
    """An ODE that is computed again, with gradients, where those are needed."""

    @staticmethod
    def forward(ctx: Any, field: Field, state: Tensor, *_weights: Tensor) -> Tensor:
        ctx.field = field
        ctx.save_for_backward(state)
        return ends(field, state)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (state,) = ctx.saved_tensors
        weights = tuple(ctx.field.parameters())
        with torch.enable_grad():
            computed = ends(ctx.field, state)
        return None, None, *torch.autograd.grad(computed, weights, gradient)


def solve(field: Field, state: Tensor) -> Tensor:
    solution: Tensor = Adjoint.apply(field, state, *field.parameters())  # type: ignore[no-untyped-call]
    return solution


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_inputs_of_a_model_that_is_called_in_the_backward_pass_are_samples(
    tmp_path: Path, micro_batches: int
) -> None:
    def script() -> None:
        field = Field()
        optimizer = torch.optim.SGD(field.parameters(), lr=1e-6)
        for _ in range(8):
            for _ in range(micro_batches):
                solve(field, torch.ones(5, 2)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    assert samples[1:] == [5 * micro_batches] * 7


def test_calls_in_the_backward_pass_are_no_samples_of_a_step_that_calls_a_model(tmp_path: Path) -> None:
    def script() -> None:
        field, encoder = Field(), nn.Linear(2, 2)
        optimizer = torch.optim.SGD([*field.parameters(), *encoder.parameters()], lr=1e-6)
        for _ in range(8):
            states = encoder(torch.ones(5, 2)).repeat(3, 1)
            solve(field, states).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    assert samples[1:] == [5] * 7

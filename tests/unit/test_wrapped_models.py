"""Test scripts that call their model through a module around it: one made for each step, as by solvers of
equations, or DDP."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import steps_of

STEPS, BATCH = 8, 5


class Wrapper(nn.Module):
    """Calls a model several times."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        for _ in range(3):
            inputs = inputs + self.model(inputs)
        return inputs


class Keeping(torch.autograd.Function):
    """Keeps the wrapper alive in the graph until the next step, as an adjoint method does."""

    @staticmethod
    def forward(ctx: Any, wrapper: Wrapper, output: Tensor) -> Tensor:
        ctx.wrapper = wrapper
        return output.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, gradients[0]


@pytest.mark.parametrize("outlives_its_step", [False, True])
def test_the_model_within_a_wrapper_of_each_step_is_followed(tmp_path: Path, outlives_its_step: bool) -> None:
    def train() -> None:
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(STEPS):
            optimizer.zero_grad()
            wrapper = Wrapper(model)
            output = wrapper(torch.randn(BATCH, 4))
            if outlives_its_step:
                output = Keeping.apply(wrapper, output)  # type: ignore[no-untyped-call]
            del wrapper
            output.square().mean().backward()
            optimizer.step()

    steps = steps_of(tmp_path, train).steps
    assert [step.step for step in steps] == list(range(1, STEPS + 1))
    # Of one that the graph keeps it is noticed in the second step that it exists no longer.
    second = 0 if outlives_its_step else BATCH
    assert [step.samples for step in steps] == [BATCH, second, *[BATCH] * (STEPS - 2)]
    assert [bool(step.forward_ns) for step in steps] == [True, bool(second), *[True] * (STEPS - 2)]


def test_models_of_one_class_that_are_trained_in_a_row_are_each_followed(tmp_path: Path) -> None:
    def train() -> None:
        for _ in range(3):
            model = nn.Linear(4, 4)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for _ in range(STEPS):
                optimizer.zero_grad()
                model(torch.randn(BATCH, 4)).square().mean().backward()
                optimizer.step()
            del model, optimizer

    steps = steps_of(tmp_path, train).steps
    # A new model is known, and its optimizer distinguished from the earlier one, after the first update.
    assert len(steps) >= 3 * STEPS - 2
    assert sum(not step.forward_ns for step in steps) <= 2


@pytest.fixture
def single_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of this process alone."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # Torch replaces the hook for good.
    store = distributed.HashStore()  # type: ignore[attr-defined]  # It is of torch._C.
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("single_process")
def test_a_wrapper_that_an_evaluation_leaves_in_evaluation_mode_is_trained_as_the_module_in_it(
    tmp_path: Path,
) -> None:
    """As DDP by Lightning, which resets the mode of its own module after each validation."""
    model = nn.Linear(4, 2)
    wrapper = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training, validation = (DataLoader(TensorDataset(torch.randn(40, 4)), batch_size=8) for _ in range(2))

    def script() -> None:
        for _ in range(3):
            wrapper.eval()
            with torch.no_grad():
                for (inputs,) in validation:
                    wrapper(inputs)
            model.train()
            for index, (inputs,) in enumerate(training):
                wrapper(inputs).square().mean().backward()
                if index % 2 or index == 4:
                    optimizer.step()
                    optimizer.zero_grad()

    steps = steps_of(tmp_path, script).steps
    assert [row.samples for row in steps] == [16, 16, 8] * 3

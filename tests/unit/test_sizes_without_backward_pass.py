"""The samples of steps with gradients from no backward pass, or without an optimizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.attach_factories import steps_of

_BATCH, _STEPS = 4, 6


@pytest.mark.parametrize("has_loader", [False, True])
def test_a_step_with_gradients_of_autograd_grad_has_the_samples_and_tokens_of_its_inputs(
    tmp_path: Path, has_loader: bool
) -> None:
    model = nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randint(9, (_BATCH * _STEPS, 5))
    batches = DataLoader(data, batch_size=_BATCH) if has_loader else data.split(_BATCH)  # type: ignore[arg-type]

    def train() -> None:
        for inputs in batches:
            loss = model(inputs).square().mean()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()

    log = steps_of(tmp_path, train)
    assert log.samples == [_BATCH] * _STEPS
    assert [row.tokens for row in log.steps] == [5 * _BATCH] * _STEPS


def test_without_an_optimizer_a_batch_of_graphs_counts_as_many_samples_as_the_loader_delivered(
    tmp_path: Path,
) -> None:
    data = [torch.ones(3 + index % 4, 2) for index in range(_BATCH * _STEPS - 1)]
    loader: DataLoader[Any] = DataLoader(data, _BATCH, collate_fn=torch.cat)  # type: ignore[arg-type]
    model = nn.Linear(2, 1)

    def evaluate(nodes: Tensor) -> None:
        model.eval()
        with torch.no_grad():
            model(nodes)
        model.train()

    def train() -> None:
        for _ in range(2):
            for nodes in loader:
                model.zero_grad()
                model(nodes).square().mean().backward()
                with torch.no_grad():
                    for parameter in model.parameters():
                        assert parameter.grad is not None
                        parameter.sub_(0.01 * parameter.grad)
            evaluate(nodes)

    assert steps_of(tmp_path, train).samples == ([_BATCH] * (_STEPS - 1) + [_BATCH - 1]) * 2

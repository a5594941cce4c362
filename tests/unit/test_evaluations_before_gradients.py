"""The samples of steps with an evaluation between the call of the model and its backward pass."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import steps_of

_BATCH, _STEPS, _EVERY = 4, 6, 3


def loader_of(batches: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(batches * batch_size, 4)), batch_size)


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("skips", [False, True])
def test_the_batch_that_the_model_was_called_with_before_an_evaluation_counts_if_it_is_trained_on(
    tmp_path: Path, micro_batches: int, skips: bool
) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    held_out = loader_of(3, 7)

    def compute(batches: Iterator[tuple[Tensor, ...]], *, evaluates: bool) -> Tensor:
        loss: Tensor = model(next(batches)[0]).square().mean()
        if evaluates:
            model.eval()
            with torch.no_grad():
                for (inputs,) in held_out:
                    model(inputs)
            model.train()
        return loss

    def train() -> None:
        batches = iter(loader_of(2 * _STEPS * micro_batches, _BATCH))
        for number in range(1, _STEPS * micro_batches + 1):
            is_due = number % _EVERY == 0
            if is_due and skips:
                compute(batches, evaluates=True)  # As where the loss is not finite.
            compute(batches, evaluates=is_due and not skips).backward()
            if number % micro_batches == 0:
                optimizer.step()
                optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, train).steps]
    assert samples == [micro_batches * _BATCH] * _STEPS

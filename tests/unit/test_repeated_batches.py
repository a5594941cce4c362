"""The samples of steps that repeat the batches of a loader that is over, along with those of another one."""

from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import attached, recorded, steps_of

_LABELED, _OTHERS, _EPOCHS = 2, 6, 2


def loader_of(batches: int, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(batches * batch_size - 1, 4)), batch_size)


def samples_of_steps(home: Path, loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> list[int]:
    """Train with two loaders, of which the shorter one is repeated; return the samples of each step."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labeled, others = loader_of(_LABELED, 3), loader_of(_OTHERS, 5)
    with attached(home) as (session, folder, guard):
        for _ in range(_EPOCHS):
            for (few,), (many,) in zip(cycle(labeled), others, strict=False):
                optimizer.zero_grad()
                loss_of(model, few, many).backward()
                optimizer.step()
        session.end(None)
        assert guard.message is None
    return [row.samples for row in recorded(folder).steps]


def together(model: nn.Module, few: Tensor, many: Tensor) -> Tensor:
    return torch.as_tensor(model(torch.cat([few, many])).sum())


def with_guesses(model: nn.Module, few: Tensor, many: Tensor) -> Tensor:
    with torch.no_grad():
        guesses = model(many)
    return torch.as_tensor(model(torch.cat([few, many])).sum() - guesses.sum())


def one_after_the_other(model: nn.Module, few: Tensor, many: Tensor) -> Tensor:
    return torch.as_tensor(model(few).sum() + model(many).sum())


@pytest.mark.parametrize("loss_of", [together, with_guesses, one_after_the_other])
def test_repeated_batches_count_where_the_model_is_called_with_all(
    tmp_path: Path, loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor]
) -> None:
    # The second labeled batch has 2 samples, and the last one of the others 4.
    assert samples_of_steps(tmp_path, loss_of) == [8, 7, 8, 7, 8, 6] * _EPOCHS


def test_they_count_in_a_step_that_goes_on_into_the_next_epoch(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labeled, others = loader_of(_LABELED, 3), DataLoader(TensorDataset(torch.randn(25, 4)), 5)

    def train() -> None:
        number = 0
        for _ in range(2):
            for (few,), (many,) in zip(cycle(labeled), others, strict=False):
                together(model, few, many).backward()
                number += 1
                if number % 2 == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    # The labeled batches have 3, 2, 3, 2, and 3 samples in each epoch.
    assert [row.samples for row in steps_of(tmp_path, train).steps] == [15, 15, 16, 15, 15]


def test_a_skipped_batch_after_steps_with_another_loader_is_not_repeated(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training, more = DataLoader(TensorDataset(torch.randn(50, 4)), 5), loader_of(5, 3)

    def train() -> None:
        others = iter(more)
        for number, (batch,) in enumerate(training, start=1):
            further = [model(inputs).sum() for (inputs,) in islice(others, number < 5)]
            loss = model(batch).sum() + sum(further)
            if number == 5:  # As where the loss is not finite.
                continue
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert [row.samples for row in steps_of(tmp_path, train).steps] == [8] * 4 + [5] * 5


def test_batches_of_a_single_loader_count_whatever_the_script_adds_to_them(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attached(tmp_path) as (session, folder, _):
        for (batch,) in loader_of(_OTHERS, 5):
            optimizer.zero_grad()
            together(model, torch.randn(3, 4), batch).backward()
            optimizer.step()
        session.end(None)
    assert [row.samples for row in recorded(folder).steps] == [5] * 5 + [4]

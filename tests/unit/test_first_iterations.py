"""The first iterations of a script with several optimizers: each is one step, with its loss and numbers."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.attach_factories import steps_of

_BATCHES, _FIRST_LOSS, _LAST_LOSS = 4, 100.0, 1.0


class Adversaries:
    """Two models that are trained with each batch, the second one with a loss of `_LAST_LOSS`."""

    def __init__(self) -> None:
        self.models = [nn.Linear(4, 1), nn.Linear(4, 4)]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in self.models]
        self.loader = DataLoader(TensorDataset(torch.zeros(2 * _BATCHES, 4)), batch_size=2)

    def step(self, inputs: torch.Tensor) -> None:
        critic, maker = self.models
        for made, optimizer, loss in (
            (False, self.optimizers[0], _FIRST_LOSS),
            (True, self.optimizers[1], _LAST_LOSS),
        ):
            optimizer.zero_grad()
            outputs = critic(maker(inputs) if made else inputs)
            (outputs.sum() * 0 + loss).backward()
            optimizer.step()


def test_the_loss_of_the_first_steps_is_that_of_the_last_backward_pass(tmp_path: Path) -> None:
    training = Adversaries()

    def train() -> None:
        for (inputs,) in training.loader:
            training.step(inputs)

    log = steps_of(tmp_path, train)
    assert [row.loss for row in log.steps] == [_LAST_LOSS] * _BATCHES
    assert [row.samples for row in log.steps] == [2] * _BATCHES


def test_the_numbers_of_the_first_iteration_are_those_of_the_first_step(tmp_path: Path) -> None:
    training = Adversaries()
    with stepscope.watch(training.models, training.optimizers, home=tmp_path) as run:
        for number, (inputs,) in enumerate(run.steps(training.loader), start=1):
            training.step(inputs)
            run.log(iteration=number)
    (folder,) = Home(tmp_path).runs()
    assert iterations(folder) == [(number, float(number)) for number in range(1, _BATCHES + 1)]


@pytest.mark.parametrize("is_second", [False, True])
def test_an_optimizer_that_never_steps_changes_no_number_of_steps(tmp_path: Path, is_second: bool) -> None:
    model = nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
    loader = DataLoader(TensorDataset(torch.zeros(2 * _BATCHES, 4)), batch_size=2)

    def train() -> None:
        for (inputs,) in loader:
            model(inputs).sum().backward()
            optimizers[is_second].step()

    assert len(steps_of(tmp_path, train).steps) == _BATCHES


def iterations(folder: RunFolder) -> list[tuple[int, float | None]]:
    """The steps and the values of the logged number."""
    with LogReader(folder.log) as log:
        return [(row.first_step, row.total) for row in log.script.scalars("iteration", 1, _BATCHES, 100)]

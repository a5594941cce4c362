"""Evaluations between the arrival of a batch and the training on it, as at the top of a loop's body."""

from collections.abc import Callable, Iterable
from itertools import islice, pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import steps_of

_BATCH, _BATCHES, _EVERY, _EPOCHS = 9, 6, 3, 3


class Loop:
    """A training that evaluates before every third batch is used."""

    def __init__(self, *, has_loader: bool) -> None:
        self.model = nn.Linear(6, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._data = torch.randn(_BATCH * _BATCHES, 6)
        self._loader = DataLoader(TensorDataset(self._data), batch_size=_BATCH) if has_loader else None
        self.others = DataLoader(TensorDataset(torch.randn(17, 6)), batch_size=5)

    def train(self, evaluate: Callable[["Loop"], None], micro_batches: int) -> None:
        """Take the steps of all epochs."""
        number = 0
        for _ in range(_EPOCHS):
            for inputs in self._batches():
                number += 1
                if number % _EVERY == 0:
                    self.model.eval()
                    with torch.no_grad():
                        evaluate(self)
                    self.model.train()
                self.model(inputs).square().mean().backward()
                if number % micro_batches == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()

    def _batches(self) -> Iterable[Tensor]:
        if self._loader is None:
            batches: Iterable[Tensor] = self._data.split(_BATCH)
            return batches
        return (inputs for (inputs,) in self._loader)


def on_all(loop: Loop) -> None:
    """A pass over the other loader."""
    for (inputs,) in loop.others:
        loop.model(inputs)


def on_some(loop: Loop) -> None:
    """Some batches of it."""
    for (inputs,) in islice(loop.others, 2):
        loop.model(inputs)


def on_one(loop: Loop) -> None:
    """One batch of it."""
    (inputs,) = next(iter(loop.others))
    loop.model(inputs)


def on_tensors(loop: Loop) -> None:
    """Samples that no loader delivers."""
    loop.model(torch.randn(17, 6))


@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("has_loader", [True, False])
@pytest.mark.parametrize("evaluate", [on_all, on_some, on_one, on_tensors])
def test_a_step_has_the_samples_that_it_is_trained_on(
    tmp_path: Path, evaluate: Callable[[Loop], None], has_loader: bool, micro_batches: int
) -> None:
    loop = Loop(has_loader=has_loader)
    log = steps_of(tmp_path, lambda: loop.train(evaluate, micro_batches))
    steps = _EPOCHS * _BATCHES // micro_batches
    assert [row.samples for row in log.steps] == [_BATCH * micro_batches] * steps


@pytest.mark.parametrize("evaluate", [on_all, on_some, on_one])
def test_no_time_of_an_evaluation_is_that_of_a_step(tmp_path: Path, evaluate: Callable[[Loop], None]) -> None:
    loop = Loop(has_loader=True)
    log = steps_of(tmp_path, lambda: loop.train(evaluate, 1))
    gaps = {row.step for before, row in pairwise(log.steps) if row.t_ns - row.step_ns - before.t_ns}
    assert gaps >= set(range(_EVERY, _EPOCHS * _BATCHES + 1, _EVERY))

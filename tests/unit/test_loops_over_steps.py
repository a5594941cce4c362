"""A loop over the steps of a run takes its batches from the loaders as a loop without the run does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.api_factories import Batch, SmallTraining, log_of, watch


def _shuffled(samples: int) -> DataLoader[Any]:
    data = TensorDataset(torch.randn(samples, 4), torch.randint(0, 2, (samples,)))
    return DataLoader(data, batch_size=8, shuffle=True)


def test_loaders_that_are_zipped_draw_their_random_numbers_in_the_same_order(tmp_path: Path) -> None:
    def train(training: SmallTraining, first: Iterator[Batch], second: Iterator[Batch]) -> list[float]:
        pairs = zip(first, second, strict=False)
        return [training.step(one).item() + training.step(two).item() for one, two in pairs]

    training = SmallTraining()
    left, right = _shuffled(64), _shuffled(32)
    bare = train(training, iter(left), iter(right))
    training = SmallTraining()
    left, right = _shuffled(64), _shuffled(32)
    with watch(training, tmp_path) as run:
        assert train(training, iter(run.steps(left)), iter(run.steps(right))) == bare
    with log_of(tmp_path) as log:
        assert len(log.last_steps(100)) == 8


def test_what_cannot_be_iterated_over_is_reported_where_the_loop_begins(tmp_path: Path) -> None:
    training = SmallTraining()
    with watch(training, tmp_path) as run, pytest.raises(TypeError, match="'int' object is not iterable"):
        iter(run.steps(5))  # type: ignore[arg-type]

"""Batches that a loop over `run.steps` releases itself, as those that fill a GPU."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tests.api_factories import SmallTraining, watch


class Batches:
    """Batches of a generator or a loader, with the number of earlier ones that are alive as each is made."""

    def __init__(self) -> None:
        self.alive: list[int] = []
        self._made: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def make(self, _samples: object = None) -> tuple[Tensor, Tensor]:
        self.alive.append(len(self._made))
        inputs, labels = torch.randn(8, 4), torch.zeros(8, dtype=torch.long)
        self._made.add(inputs)
        return inputs, labels

    def generator(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self.make() for _ in range(4))

    def loader(self) -> DataLoader[Any]:
        return DataLoader(range(32), batch_size=8, collate_fn=self.make)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["generator", "loader"])
def test_a_batch_that_the_loop_releases_is_gone_before_the_next_is_loaded(
    tmp_path: Path, source: str
) -> None:
    training, batches = SmallTraining(), Batches()
    with watch(training, tmp_path) as run:
        for batch in run.steps(getattr(batches, source)()):
            training.step(batch)
            del batch
    assert batches.alive == [0, 0, 0, 0]

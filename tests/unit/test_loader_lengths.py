"""`len(loader)` of a script where the batch size changes while it runs."""

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Sampler

from tests.loader_factories import Numbers, SmallTraining, a_loader, watched


@pytest.mark.parametrize(("size", "lengths"), [(8, [4, 3, 3]), (2, [10, 12, 12]), (24, [3, 1, 1])])
def test_the_length_of_a_loader_is_that_of_the_epoch_under_way(
    tmp_path: Path, size: int, lengths: list[int]
) -> None:
    loader = a_loader(count=24, batch_size=4)
    small, seen = SmallTraining(), []
    with watched(tmp_path) as run:
        for epoch in range(3):
            for number, batch in enumerate(loader, start=1):
                small.step(batch)
                length = len(loader)
                if (epoch, number) == (0, 1):
                    run.request(batch_size=size)
            assert length == number
            seen.append(number)
    assert len(loader) == 6
    assert seen == lengths


class Endless(Sampler[int]):
    """A sampler without a length."""

    def __iter__(self) -> Iterator[int]:
        return count()


def test_a_loader_without_a_length_has_none_after_a_change(tmp_path: Path) -> None:
    loader = DataLoader(Numbers(10_000), batch_size=4, sampler=Endless())
    small = SmallTraining()
    with watched(tmp_path) as run:
        for step, batch in enumerate(islice(loader, 6), start=1):
            if step == 2:
                run.request(batch_size=3)
            small.step(batch)
        with pytest.raises(TypeError, match="has no len"):
            len(loader)
    assert run.samples_per_step() == [4, 4, 3, 3, 3, 3]

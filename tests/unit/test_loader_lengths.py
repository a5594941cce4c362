"""`len(loader)` of a script where the batch size changes while it runs."""

from collections.abc import Iterator, Sized
from itertools import count, islice
from pathlib import Path

import pytest
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from harness.attach.lengths import LoaderLengths
from tests.attach_factories import attached
from tests.loader_factories import Numbers, SmallTraining, a_loader, watched


@pytest.mark.parametrize(("size", "lengths"), [(8, [4, 3, 3]), (2, [10, 12, 12]), (24, [3, 1, 1])])
def test_the_length_of_a_loader_is_that_of_the_epoch_under_way(
    tmp_path: Path, size: int, lengths: list[int]
) -> None:
    loader = a_loader(count=24, batch_size=4)
    small, samples = SmallTraining(), []
    with watched(tmp_path) as run:
        for epoch in range(3):
            for number, batch in enumerate(loader, start=1):
                small.step(batch)
                length = len(loader)
                if (epoch, number) == (0, 1):
                    run.request(batch_size=size)
            assert length == number
            samples.append(number)
    assert len(loader) == 6
    assert samples == lengths


def average_over(total: float, loader: Sized) -> float:
    return total / len(loader)


def shown(loader: DataLoader[int]) -> Iterator[Tensor]:
    """Batches, as a progress bar passes them on."""
    assert len(loader)
    yield from loader


@pytest.mark.parametrize("is_shown", [False, True])
@pytest.mark.parametrize(("size", "batches"), [(8, [4, 3]), (2, [10, 12])])
def test_the_length_after_a_loop_is_that_of_its_epoch_and_before_it_that_of_the_next(
    tmp_path: Path, size: int, batches: list[int], is_shown: bool
) -> None:
    loader = a_loader(count=24, batch_size=4)
    small, before, after, averages = SmallTraining(), [], [], []
    with watched(tmp_path) as run:
        for epoch in range(3):
            before.append(len(loader))
            number = 0
            for batch in shown(loader) if is_shown else loader:
                number += 1
                small.step(batch)
                if (epoch, number) == (0, 1):
                    run.request(batch_size=size)
            after.append(len(loader))
            averages.append(average_over(number, loader))
    assert before == [6, batches[1], batches[1]]
    assert after == [batches[0], batches[1], batches[1]]
    assert averages == [1, 1, 1]


def test_the_length_after_a_loop_without_other_batches_is_its_own(tmp_path: Path) -> None:
    loader = a_loader(count=24, batch_size=4)
    small, lengths = SmallTraining(), []
    with watched(tmp_path) as run:
        for epoch in range(3):
            for batch in loader:
                small.step(batch)
            if epoch == 0:
                run.request(batch_size=8)
                small.step(batch)
                lengths.append(len(loader))
            lengths.append(len(loader))
    assert run.answers()[-1][0] == "applied"
    assert lengths == [6, 6, 3, 3]


def test_the_first_batch_of_the_next_epoch_has_the_length_of_that(tmp_path: Path) -> None:
    loader = a_loader(count=24, batch_size=4)
    small, lengths = SmallTraining(), []
    with watched(tmp_path) as run:
        for epoch in range(2):
            for number, batch in enumerate(loader):
                if number == 0:
                    lengths.append(len(loader))
                small.step(batch)
                if (epoch, number) == (0, 1):
                    run.request(batch_size=12)
    assert lengths == [6, 2]


def test_an_error_at_the_end_of_a_pass_is_not_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise ValueError("no length")

    monkeypatch.setattr(LoaderLengths, "ended", fail)
    small, count = SmallTraining(), 0
    with attached(tmp_path) as (_, _, guard):
        for _epoch in range(2):
            for batch in a_loader(count=12, batch_size=4):
                small.step(batch)
                count += 1
        assert "no length" in (guard.message or "")
    assert count == 6


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

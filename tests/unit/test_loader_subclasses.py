"""Loaders of classes with an `__iter__` of their own."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter, _SingleProcessDataLoaderIter

from harness.attach.passes import LoaderPass
from harness.records.run import CommandState
from tests.loader_factories import Numbers, SmallTraining, Watched, watched
from tests.session_factories import a_session

_SAMPLES, _BATCH = 24, 4
_Loader = DataLoader[Any]


class OpensItself(_Loader):
    """Makes an iterator of torch's without DataLoader, as torchdata's StatefulDataLoader."""

    def _get_iterator(self) -> Any:
        return (_MultiProcessingDataLoaderIter if self.num_workers else _SingleProcessDataLoaderIter)(self)

    def __iter__(self) -> Any:
        self.opened = self._get_iterator()
        return self.opened


class PassesOn(_Loader):
    """Adds work of its own to each batch, as Accelerate's loaders do."""

    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield batch + 0


class Endless:
    """Repeats a sampler."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


class Repeats(_Loader):
    """One iterator for all epochs, as timm's MultiEpochsDataLoader."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        object.__setattr__(self, "batch_sampler", Endless(self.batch_sampler))
        self.batches = self.first_iterator()

    def first_iterator(self) -> Any:
        return super().__iter__()

    def __len__(self) -> int:
        return _SAMPLES // _BATCH

    def __iter__(self) -> Any:
        for _ in range(len(self)):
            yield next(self.batches)


class RepeatsItself(Repeats):
    """The same without `DataLoader.__iter__`, as YOLO's InfiniteDataLoader."""

    def first_iterator(self) -> Any:
        return self._get_iterator()


class Begins(_Loader):
    """Does something at the begin of each epoch."""

    def __iter__(self) -> Any:
        return super().__iter__()


def defined_later() -> type[_Loader]:
    class Later(_Loader):
        def __iter__(self) -> Any:
            return self._get_iterator()

    return Later


def train_one_epoch(training: SmallTraining, loader: _Loader) -> None:
    samples = []
    for batch in loader:
        training.step(batch)
        samples += batch.tolist()
    assert samples == list(range(_SAMPLES))


def expect_two_epochs(run: Watched) -> None:
    assert run.samples_per_step() == [_BATCH] * (2 * _SAMPLES // _BATCH)
    with run.log() as log:
        assert all(row.data_wait_ns > 0 for row in log.steps(2, 100))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind_of", [lambda: OpensItself, defined_later], ids=["before", "while watched"])
def test_batches_are_timed_where_a_class_opens_its_iterator_itself(
    tmp_path: Path, kind_of: Callable[[], type[_Loader]], workers: int
) -> None:
    with watched(tmp_path) as run:
        loader = kind_of()(Numbers(_SAMPLES), batch_size=_BATCH, num_workers=workers)
        training = SmallTraining()
        train_one_epoch(training, loader)
        run.request(batch_size=2)
        train_one_epoch(training, loader)
    expect_two_epochs(run)
    with run.log() as log:
        assert log.settings_history()[-1].settings.count('"batch_size": 4')
    ((state, message),) = run.answers()
    assert state == CommandState.REJECTED
    assert f"{type(loader).__name__} opens its iterator in a way of its own" in message


def boxes_and_images(samples: list[int]) -> dict[str, torch.Tensor]:
    """A batch with the boxes of the objects in several images, which come before the images."""
    return {"boxes": torch.zeros(sum(samples), 4), "images": torch.tensor(samples)}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", [OpensItself, RepeatsItself])
def test_samples_are_the_indices_where_a_class_opens_its_iterator_itself(
    tmp_path: Path, kind: type[_Loader], workers: int
) -> None:
    with watched(tmp_path) as run:
        data = Numbers(_SAMPLES + 1)
        loader = kind(data, batch_size=_BATCH, num_workers=workers, collate_fn=boxes_and_images)
        training = SmallTraining()
        for batch in loader:
            training.step(batch["images"])
    assert run.samples_per_step() == [_BATCH] * 6 + [1] * (kind is OpensItself)


def test_the_own_iterator_of_a_loader_is_at_hand_through_the_watched_one(tmp_path: Path) -> None:
    loader = OpensItself(Numbers(_SAMPLES), batch_size=_BATCH)
    with watched(tmp_path):
        batches = iter(loader)
        assert batches is not loader.opened
        assert batches._num_yielded == 0
        next(batches)
        assert loader.opened._num_yielded == batches._num_yielded == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("kind", [PassesOn, Repeats, RepeatsItself])
def test_a_batch_that_two_iterators_pass_on_counts_once(
    tmp_path: Path, kind: type[_Loader], workers: int
) -> None:
    with watched(tmp_path) as run:
        loader = kind(Numbers(_SAMPLES), batch_size=_BATCH, num_workers=workers)
        training = SmallTraining()
        train_one_epoch(training, loader)
        train_one_epoch(training, loader)
    expect_two_epochs(run)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [OpensItself, Repeats, RepeatsItself])
def test_the_workers_of_a_dropped_loader_end_at_the_next_step(tmp_path: Path, kind: type[_Loader]) -> None:
    """Not when garbage is collected: torch would have the script wait for them then."""
    training = SmallTraining()
    with watched(tmp_path) as run:
        loader = kind(Numbers(_SAMPLES), batch_size=_BATCH, num_workers=1)
        for batch in loader:
            training.step(batch)
        iterator = loader.opened if isinstance(loader, OpensItself) else loader.batches  # type: ignore[attr-defined]
        (worker,) = iterator._workers
        gc.disable()
        try:
            del loader, iterator
            training.step(torch.arange(_BATCH))
            worker.join(10.0)
            assert worker.exitcode == 0
        finally:
            gc.enable()
    assert len(run.samples_per_step()) == _SAMPLES // _BATCH + 1


def test_such_a_loader_has_its_batches_where_the_watch_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("a fault of the watch")

    monkeypatch.setattr(LoaderPass, "follow", fail)
    loader = OpensItself(Numbers(_SAMPLES), batch_size=_BATCH)
    with a_session(tmp_path) as attached:
        assert [number for batch in loader for number in batch.tolist()] == list(range(_SAMPLES))
        assert not attached.guard.is_on
    assert "a fault of the watch" in capsys.readouterr().err


def test_a_loader_that_is_dropped_while_it_is_read_delivers_and_cannot_change(tmp_path: Path) -> None:
    training = SmallTraining()
    with watched(tmp_path) as run:
        for epoch in range(2):
            batches = iter(Begins(Numbers(_SAMPLES), batch_size=_BATCH))
            training.step(next(batches))
            if epoch:
                run.request(batch_size=2)
            count = 1
            for batch in batches:
                training.step(batch)
                count += 1
            assert count == _SAMPLES // _BATCH
    expect_two_epochs(run)
    ((state, message),) = run.answers()
    assert (state, "has dropped it" in message) == (CommandState.REJECTED, True)


def test_afterwards_the_classes_are_as_before(tmp_path: Path) -> None:
    before = vars(OpensItself)["__iter__"]
    with watched(tmp_path):
        assert vars(OpensItself)["__iter__"] is not before
        later = defined_later()
    assert vars(OpensItself)["__iter__"] is before
    assert "__init_subclass__" not in vars(DataLoader)
    iterator: Iterator[torch.Tensor] = iter(later(Numbers(_SAMPLES), batch_size=_BATCH))
    assert type(iterator).__module__ == "torch.utils.data.dataloader"

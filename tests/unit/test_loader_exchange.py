"""The exchange of a loader's iterator, with and without workers."""

import threading
import time
import warnings
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from harness.attach.loader_values import values_of
from harness.attach.passes import LoaderPass
from harness.errors import StepscopeError
from tests.loader_factories import Numbers, Stream, a_loader, a_pass, numbers

DEADLINE_S = 20.0


def wait_for_retirement() -> None:
    deadline = time.monotonic() + DEADLINE_S
    for thread in threading.enumerate():
        if thread.name == "stepscope-retire-workers":
            thread.join(deadline - time.monotonic())


def in_turn(first: int, *sizes: int) -> list[list[int]]:
    """The numbers from `first` in batches of these sizes."""
    ends = [first + sum(sizes[: at + 1]) for at in range(len(sizes))]
    return [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


# Functions of the module: workers may begin by a method that pickles them.


def at_most(most: int, samples: list[int]) -> list[int]:
    """Return `samples` as a batch. Raises ValueError where there are more than `most`."""
    if len(samples) > most:
        raise ValueError("too many")
    return samples


def fail_to_start(_worker: int) -> None:
    """Raise TypeError."""
    raise TypeError("no such worker")


def test_the_next_batch_has_the_new_size_and_the_length_stays() -> None:
    loader = a_loader(count=20, batch_size=4)
    batches = a_pass(loader)
    assert numbers(next(batches)) == [0, 1, 2, 3]
    batches.exchange(batches.values._replace(batch_size=8))
    assert [numbers(batch) for batch in batches] == in_turn(4, 8, 8)
    assert (len(loader), len(batches.batches)) == (5, 5)  # type: ignore[arg-type]  # as a script calls it


def test_a_tail_that_was_to_be_dropped_comes_in_smaller_batches() -> None:
    batches = a_pass(a_loader(count=11, batch_size=4, drop_last=True))
    list(islice(batches, 2))
    batches.exchange(batches.values._replace(batch_size=2))
    assert [numbers(batch) for batch in batches] == in_turn(8, 2)


def test_attributes_of_the_script_s_loader_are_as_before() -> None:
    loader = a_loader(batch_size=4)
    before = dict(vars(loader))
    batches = a_pass(loader)
    batches.exchange(batches.values._replace(batch_size=8))
    assert vars(loader) == before


def test_an_iterator_that_cannot_be_opened_changes_nothing() -> None:
    loader = a_loader("random", count=20, batch_size=4)
    is_failing = False

    def open_iterator(_loader: Any) -> Any:
        if is_failing:
            raise OSError("no more processes")
        return DataLoader.__iter__(loader)

    torch.manual_seed(2)
    batches = LoaderPass(loader, open_iterator, lambda _pass, _error: None)
    batches.prepare(loader, values_of(loader))
    batches.open(loader)
    samples = numbers(next(batches))
    is_failing = True
    with pytest.raises(StepscopeError, match="no more processes"):
        batches.exchange(batches.values._replace(batch_size=8))
    rest = [numbers(batch) for batch in batches]
    assert [len(batch) for batch in rest] == [4, 4, 4, 4]
    assert sorted(sum(rest, samples)) == list(range(20))


def test_a_first_batch_that_fails_has_the_exchange_undone_and_is_loaded_again() -> None:
    is_failing = False

    def collate(samples: list[int]) -> list[int]:
        if len(samples) > 4 and is_failing:
            raise MemoryError("too large")
        return samples

    loader = a_loader(count=12, batch_size=4, collate_fn=collate)
    errors: list[Exception | None] = []
    batches = LoaderPass(loader, DataLoader.__iter__, lambda _pass, error: errors.append(error))
    batches.prepare(loader, values_of(loader))
    batches.open(loader)
    next(batches)
    is_failing = True
    batches.exchange(batches.values._replace(batch_size=8))
    assert list(batches) == in_turn(4, 4, 4)
    assert [str(error) for error in errors] == ["None", "None", "too large"]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_first_batch_of_an_epoch_that_fails_is_loaded_again_with_earlier_values(num_workers: int) -> None:
    loader = a_loader(count=12, batch_size=4, collate_fn=partial(at_most, 4), worker_init_fn=fail_to_start)
    errors: list[Exception | None] = []
    batches = LoaderPass(loader, DataLoader.__iter__, lambda _pass, error: errors.append(error))
    own = values_of(loader)
    failing = own._replace(num_workers=1) if num_workers else own._replace(batch_size=8)
    batches.prepare(loader, failing, own)
    batches.open(loader)
    assert (batches.is_tried, batches.tried_values) == (False, own)
    assert list(batches) == in_turn(0, 4, 4, 4)
    assert [type(error).__name__ for error in errors] == [
        "NoneType",
        "TypeError" if num_workers else "ValueError",
    ]
    assert (batches.is_tried, batches.tried_values) == (True, own)


def test_of_two_exchanges_before_a_batch_that_fails_both_are_undone() -> None:
    batches = a_pass(a_loader(count=12, batch_size=4, collate_fn=partial(at_most, 4)))
    next(batches)
    batches.exchange(batches.values._replace(batch_size=6))
    batches.exchange(batches.values._replace(prefetch_factor=3))
    assert list(batches) == in_turn(4, 4, 4)
    assert batches.values == values_of(a_loader(batch_size=4))


def test_an_exchange_back_to_tried_values_needs_no_trial() -> None:
    batches = a_pass(a_loader(count=12, batch_size=4))
    next(batches)
    own = batches.values
    batches.exchange(own._replace(batch_size=6))
    batches.exchange(own)
    assert (batches.is_tried, batches.tried_values) == (True, own)


def test_a_short_batch_at_the_end_of_an_epoch_proves_no_batch_size() -> None:
    loader = a_loader(count=11, batch_size=4, collate_fn=partial(at_most, 4))
    batches = a_pass(loader)
    own = batches.values
    list(islice(batches, 2))
    batches.exchange(own._replace(batch_size=8))
    assert list(batches) == in_turn(8, 3)
    assert batches.tried_values == own
    again = LoaderPass(loader, DataLoader.__iter__, lambda _pass, _error: None)
    again.prepare(loader, batches.values, batches.tried_values)
    again.open(loader)
    assert list(again) == in_turn(0, 4, 4, 3)


def test_a_batch_of_the_whole_dataset_proves_a_larger_size() -> None:
    loader = a_loader(count=11, batch_size=4)
    batches = LoaderPass(loader, DataLoader.__iter__, lambda _pass, _error: None)
    batches.prepare(loader, values_of(loader)._replace(batch_size=32), values_of(loader))
    batches.open(loader)
    next(batches)
    assert batches.is_tried


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_first_batch_of_an_iterable_dataset_that_fails_is_loaded_again(num_workers: int) -> None:
    loader = DataLoader(Stream(10), batch_size=4, collate_fn=partial(at_most, 4), num_workers=num_workers)
    errors: list[Exception | None] = []
    batches = LoaderPass(loader, DataLoader.__iter__, lambda _pass, error: errors.append(error))
    own = values_of(loader)
    batches.prepare(loader, own._replace(batch_size=8), own)
    batches.open(loader)
    assert list(batches) == in_turn(0, 4, 4, 2)
    assert [type(error).__name__ for error in errors] == ["NoneType", "ValueError"]
    assert (batches.is_tried, batches.values) == (True, own)


def test_an_iterable_dataset_that_fails_with_its_own_values_too_is_the_scripts() -> None:
    loader = DataLoader(Stream(10), batch_size=4, collate_fn=partial(at_most, 2))
    batches = LoaderPass(loader, DataLoader.__iter__, lambda _pass, _error: None)
    batches.prepare(loader, values_of(loader)._replace(batch_size=8), values_of(loader))
    batches.open(loader)
    with pytest.raises(ValueError, match="too many"):
        next(batches)


def test_an_error_of_the_dataset_itself_is_the_scripts() -> None:
    loader = DataLoader(Numbers(12, broken=frozenset({5})), batch_size=4)
    batches = a_pass(loader)
    next(batches)
    batches.exchange(batches.values._replace(batch_size=2))
    with pytest.raises(ValueError, match="number 5 is broken"):
        next(batches)
    # The failed batch, of the earlier size, is gone, as in the bare loader.
    assert numbers(next(batches)) == [8, 9, 10, 11]


def test_a_loader_with_an_index_sampler_of_its_own_keeps_it_and_says_so() -> None:
    class Backwards(DataLoader[int]):
        @property
        def _index_sampler(self) -> list[list[int]]:
            return [[2, 1], [0]]

    loader = Backwards(Numbers(3), batch_size=3)
    batches = a_pass(loader)
    batches.prepare(loader, batches.values._replace(pin_memory=True), batches.values)
    batches.open(loader)
    assert batches.is_tried
    assert [numbers(batch) for batch in batches] == [[2, 1], [0]]
    assert batches.fixed_because == "Backwards opens its iterator in a way of its own"


def test_a_loader_that_shows_another_dataset_between_two_batches_goes_on_unchanged() -> None:
    class Hiding(DataLoader[int]):
        is_opening = False

        def __iter__(self) -> Any:
            Hiding.is_opening = True
            batches = super().__iter__()
            Hiding.is_opening = False
            return batches

        def __getattribute__(self, name: str) -> Any:
            hides = name == "dataset" and not Hiding.is_opening and "dataset" in vars(self)
            return Numbers(1) if hides else super().__getattribute__(name)

    loader = Hiding(Numbers(8), batch_size=4)
    batches = LoaderPass(loader, iter, lambda _pass, _error: None)
    batches.prepare(loader, values_of(loader))
    batches.open(loader)
    assert numbers(next(batches)) == [0, 1, 2, 3]
    with pytest.raises(StepscopeError, match="another dataset"):
        batches.exchange(batches.values._replace(batch_size=2))
    assert [numbers(batch) for batch in batches] == in_turn(4, 4)


def test_pinned_memory_of_an_exchange_reaches_torch() -> None:
    batches = a_pass(a_loader(count=8, batch_size=4))
    next(batches)
    with warnings.catch_warnings(record=True) as expected:
        warnings.simplefilter("always")
        next(iter(DataLoader(Numbers(1), pin_memory=True)))  # Before torch 2.7 there is no warning.
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        batches.exchange(batches.values._replace(pin_memory=True))
    assert [str(one.message) for one in messages] == [str(one.message) for one in expected]
    assert [numbers(batch) for batch in batches] == in_turn(4, 4)


def test_an_iterable_dataset_says_why_it_waits_for_the_next_epoch() -> None:
    batches = a_pass(DataLoader(Stream(10), batch_size=4))
    assert batches.obstacle is not None
    assert "IterableDataset" in batches.obstacle
    assert [numbers(batch) for batch in batches] == in_turn(0, 4, 4, 2)


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_come_and_go_within_an_epoch_and_no_sample_is_lost(persistent: bool) -> None:
    torch.manual_seed(4)
    loader = a_loader("random", 60, batch_size=4, num_workers=2, persistent_workers=persistent)
    batches = a_pass(loader)
    samples = [numbers(batch) for batch in islice(batches, 3)]
    first = list(batches.batches._workers)  # type: ignore[attr-defined]
    batches.exchange(batches.values._replace(batch_size=6))
    samples += [numbers(batch) for batch in islice(batches, 2)]
    second = list(batches.batches._workers)  # type: ignore[attr-defined]
    batches.exchange(batches.values._replace(batch_size=5, num_workers=0))
    samples += [numbers(batch) for batch in islice(batches, 2)]
    batches.exchange(batches.values._replace(batch_size=3, num_workers=1, prefetch_factor=4))
    samples += [numbers(batch) for batch in batches]
    wait_for_retirement()
    assert [len(batch) for batch in samples] == [4] * 3 + [6] * 2 + [5] * 2 + [3] * 8 + [2]
    assert sorted(number for batch in samples for number in batch) == list(range(60))
    assert not any(worker.is_alive() for worker in first + second)
    again = a_pass(loader)
    assert sorted(number for batch in again for number in numbers(batch)) == list(range(60))


@pytest.mark.slow
def test_with_workers_batches_and_random_state_are_those_of_the_bare_loader() -> None:
    def two_epochs(open_pass: Any) -> tuple[list[list[int]], list[int]]:
        torch.manual_seed(7)
        loader = a_loader("random", 30, batch_size=4, num_workers=2, persistent_workers=True)
        samples = [numbers(batch) for _ in range(2) for batch in open_pass(loader)]
        return samples, torch.get_rng_state().tolist()

    assert two_epochs(a_pass) == two_epochs(iter)

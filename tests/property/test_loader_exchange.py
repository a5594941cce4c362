"""Exchanges of a loader's iterator at any moment of an epoch."""

from itertools import islice
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from harness.attach.guard import ScriptGuard
from harness.attach.loaders import LoaderSwitch
from harness.settings import Settings
from tests.examples import examples
from tests.loader_factories import SAMPLERS, Numbers, Pairs, a_loader, a_pass, numbers

EXCHANGES = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=4)


class Rows(Dataset[torch.Tensor]):
    """The numbers from 0, whole batches of which are loaded at once."""

    def __init__(self, count: int) -> None:
        self.data = torch.arange(count)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, indices: list[int]) -> torch.Tensor:
        return self.data[indices]


def order_of(sampler: str, count: int) -> list[int]:
    """The indices that the sampler yields in the epoch after the seed."""
    torch.manual_seed(11)
    loader = a_loader(sampler, count, batch_size=1)
    return [number for batch in loader for number in numbers(batch)]


@examples(3)
@given(st.sampled_from(sorted(SAMPLERS)), st.integers(1, 40), st.integers(1, 9), st.booleans(), EXCHANGES)
def test_every_sample_comes_once_and_in_the_samplers_order_whatever_is_exchanged(
    sampler: str, count: int, size: int, drop_last: bool, exchanges: list[tuple[int, int]]
) -> None:
    order = order_of(sampler, count)
    torch.manual_seed(11)
    batches = a_pass(a_loader(sampler, count, batch_size=size, drop_last=drop_last))
    samples: list[list[int]] = []
    for wait, new_size in exchanges:
        samples += [numbers(batch) for batch in islice(batches, wait)]
        if batches.is_over:
            break
        batches.exchange(batches.values._replace(batch_size=new_size))
        size = new_size
    samples += [numbers(batch) for batch in batches]
    flat = [number for batch in samples for number in batch]
    assert flat == order[: len(flat)]
    assert len(order) - len(flat) < (size if drop_last else 1)


@examples(1.5)
@given(st.sampled_from(sorted(SAMPLERS)), st.integers(1, 40), st.integers(1, 9), st.booleans())
def test_without_an_exchange_batches_and_random_state_are_those_of_the_bare_loader(
    sampler: str, count: int, size: int, drop_last: bool
) -> None:
    def two_epochs(open_pass: Any) -> tuple[list[list[int]], list[int]]:
        torch.manual_seed(7)
        loader = a_loader(sampler, count, batch_size=size, drop_last=drop_last)
        samples = [numbers(batch) for _ in range(2) for batch in open_pass(loader)]
        return samples, torch.get_rng_state().tolist()

    assert two_epochs(a_pass) == two_epochs(iter)


@given(st.sampled_from(sorted(SAMPLERS)), st.integers(1, 40), st.integers(1, 9), EXCHANGES)
def test_an_exchange_leaves_the_scripts_random_numbers_alone(
    sampler: str, count: int, size: int, exchanges: list[tuple[int, int]]
) -> None:
    def state_after(switches: bool) -> list[int]:
        torch.manual_seed(7)
        batches = a_pass(a_loader(sampler, count, batch_size=size))
        next(batches)
        for _, new_size in exchanges if switches else ():
            batches.exchange(batches.values._replace(batch_size=new_size))
        list(batches)
        return torch.get_rng_state().tolist()

    assert state_after(True) == state_after(False)


@examples(0.5)
@given(st.integers(1, 30), st.integers(0, 5))
def test_a_batch_sampler_of_the_scripts_own_keeps_its_batches(count: int, wait: int) -> None:
    def opened() -> DataLoader[int]:
        torch.manual_seed(5)
        return DataLoader(Numbers(count), batch_sampler=Pairs(count))

    bare = [numbers(batch) for batch in opened()], torch.get_rng_state().tolist()
    batches = a_pass(opened())
    samples = [numbers(batch) for batch in islice(batches, wait)]
    if not batches.is_over:
        batches.exchange(batches.values._replace(pin_memory=False))
    samples += [numbers(batch) for batch in batches]
    assert (samples, torch.get_rng_state().tolist()) == bare


@examples(1.5)
@given(
    st.sampled_from(sorted(SAMPLERS)),
    st.integers(1, 30),
    st.integers(1, 9),
    st.booleans(),
    st.dictionaries(st.integers(1, 20), st.integers(1, 12), max_size=4),
)
def test_changes_at_any_step_of_several_epochs_lose_no_sample_and_stay(
    sampler: str, count: int, size: int, drop_last: bool, sizes: dict[int, int]
) -> None:
    torch.manual_seed(11)
    bare = a_loader(sampler, count, batch_size=1)
    orders = [[number for batch in bare for number in numbers(batch)] for _ in range(3)]
    torch.manual_seed(11)
    loader = a_loader(sampler, count, batch_size=size, drop_last=drop_last)
    guard, step = ScriptGuard(), 0
    switch = LoaderSwitch(guard)
    for order in orders:
        samples: list[int] = []
        batches = switch.open(loader, DataLoader.__iter__)
        number = length = 0
        for batch in batches:
            step, number = step + 1, number + 1
            switch.feeding.delivered(batches)
            samples += numbers(batch)
            is_tail = len(samples) == len(order)
            assert len(batch) == size or (is_tail and not drop_last)
            switch.step_ended(step)
            if step in sizes:
                size = sizes[step]
                switch.apply(Settings(batch_size=size))
            length = switch.length(loader) or len(loader)
        assert number == length
        switch.ended(batches)
        assert samples == order[: len(samples)]
        assert len(order) - len(samples) < (size if drop_last else 1)
    assert guard.is_on


@examples(1)
@given(
    st.integers(1, 40),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), max_size=4),
)
def test_a_sampler_of_whole_batches_keeps_its_own_whatever_is_exchanged(
    count: int, size: int, exchanges: list[tuple[int, int]]
) -> None:
    sampler = BatchSampler(SequentialSampler(range(count)), size, drop_last=False)
    loader = DataLoader(Rows(count), batch_size=None, sampler=sampler)
    expected = [numbers(batch) for batch in loader]
    batches, samples = a_pass(loader), []
    for wait, prefetch in exchanges:
        samples += [numbers(batch) for batch in islice(batches, wait)]
        if batches.is_over:
            break
        batches.exchange(batches.values._replace(prefetch_factor=prefetch))
        assert not batches.has_other_batches(loader)
    samples += [numbers(batch) for batch in batches]
    assert samples == expected

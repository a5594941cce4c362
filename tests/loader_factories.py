"""Loaders of a script, and passes over them as a watched script makes them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from harness.attach.guard import ScriptGuard
from harness.attach.loaders import LoaderSwitch
from harness.attach.passes import LoaderPass, values_of


class Numbers(Dataset[int]):
    """The numbers from 0, each its own index; `broken` ones raise ValueError."""

    def __init__(self, count: int, broken: frozenset[int] = frozenset()) -> None:
        self.count = count
        self.broken = broken

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        if index in self.broken:
            raise ValueError(f"number {index} is broken")
        return index


class Stream(IterableDataset[int]):
    """The numbers from 0, one after the other."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


class Pairs(Sampler[list[int]]):
    """A batch sampler of a script's own, which draws as it is opened."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return (self.count + 1) // 2

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(self.count).tolist()
        return iter([order[at : at + 2] for at in range(0, self.count, 2)])


SAMPLERS: dict[str, Callable[[Dataset[int], int], Sampler[int]]] = {
    "sequential": lambda data, _count: SequentialSampler(data),  # type: ignore[arg-type]  # it has a length
    "random": lambda data, _count: RandomSampler(data),  # type: ignore[arg-type]
    "generator": lambda data, _count: RandomSampler(data, generator=torch.Generator().manual_seed(3)),  # type: ignore[arg-type]
    "replacement": lambda data, count: RandomSampler(data, replacement=True, num_samples=count),  # type: ignore[arg-type]
    "weighted": lambda _data, count: WeightedRandomSampler([1.0] * count, count),
    "subset": lambda _data, count: SubsetRandomSampler(range(0, count, 2)),
    "distributed": lambda data, _count: DistributedSampler(data, num_replicas=3, rank=1, seed=5),
}


def a_loader(sampler: str = "sequential", count: int = 20, **arguments: Any) -> DataLoader[int]:
    data = Numbers(count)
    return DataLoader(data, sampler=SAMPLERS[sampler](data, count), **arguments)


def a_pass(loader: DataLoader[Any]) -> LoaderPass:
    """A pass as the script would make it, with the loader's own values."""
    batches = LoaderPass(loader, partial(DataLoader.__iter__, loader), lambda _pass, _error: None)
    batches.prepare(values_of(loader))
    batches.open()
    return batches


def a_switch() -> LoaderSwitch:
    return LoaderSwitch(ScriptGuard())


def open_pass(switch: LoaderSwitch, loader: DataLoader[Any]) -> LoaderPass:
    return switch.open(loader, partial(DataLoader.__iter__, loader))


def numbers(batch: Tensor | Any) -> list[int]:
    """The numbers in a batch."""
    return [int(number) for number in batch]

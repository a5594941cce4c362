"""Loaders of a script, and passes over them as a watched script makes them."""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
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
from harness.attach.loader_values import values_of
from harness.attach.loaders import LOADER_SETTINGS
from harness.attach.passes import LoaderPass
from harness.attach.session import Session
from harness.records.run import CommandKind, CommandRow
from harness.records.script import ScriptOrigin
from harness.store.folder import RunFolder
from harness.store.folder_handle import FolderHandle
from harness.store.home import Home
from harness.store.liveness import Liveness
from harness.store.reader import LogReader
from harness.watch.watch import RunFiles


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
    batches = LoaderPass(loader, DataLoader.__iter__, lambda _pass, _error: None)
    batches.prepare(loader, values_of(loader))
    batches.open(loader)
    return batches


def numbers(batch: Tensor | Any) -> list[int]:
    """The numbers in a batch."""
    return [int(number) for number in batch]


class Watched:
    """A session over this process, whose torch is patched, and the folder of its run."""

    def __init__(self, session: Session, guard: ScriptGuard, folder: RunFolder) -> None:
        self.session = session
        self.guard = guard
        self.folder = folder
        self._requests = 0

    def request(self, **values: Any) -> str:
        """Request settings before the next step; return the command's id."""
        self._requests += 1
        command_id = f"c{self._requests}"
        row = CommandRow(command_id, 1, CommandKind.SET, json.dumps(values), "the test")
        self.session.inbox.put(row)
        return command_id

    def log(self) -> LogReader:
        """The log, which is whole once the session has ended."""
        return LogReader(self.folder.log)

    def answers(self) -> list[tuple[str, str]]:
        """State and message of every answer."""
        with self.log() as log:
            return [(row.state, row.message) for row in log.acks()]

    def samples_per_step(self) -> list[int]:
        """The samples of every step."""
        with self.log() as log:
            return [row.samples for row in log.last_steps(1000)]

    def settings(self) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
        """First step, values and changes of every version of the settings, those of the loader only."""
        with self.log() as log:
            return [
                (row.step, _of_loader(json.loads(row.settings)), json.loads(row.changed))
                for row in log.settings_history()
            ]


def _of_loader(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in LOADER_SETTINGS}


@contextmanager
def watched(home: Path) -> Iterator[Watched]:
    """A session that ends with the context."""
    gc.collect()  # Optimizers of earlier tests are not the script's.
    origin = ScriptOrigin("train.py", (), str(home), "python", None, None)
    folder = Home(home).create_for_script(None, origin, 0)
    with FolderHandle(folder) as handle, Liveness.hold(handle.steady.alive) as alive:
        guard = ScriptGuard()
        files = RunFiles(folder.path, handle, alive)
        session = Session(folder, files, guard, lambda: None)
        try:
            yield Watched(session, guard, folder)
            assert guard.is_on
        finally:
            session.end(None)


class SmallTraining:
    """A model that trains on numbers, as a script would."""

    def __init__(self) -> None:
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-6)

    def step(self, *batches: Tensor) -> None:
        """Train on the batches."""
        self.optimizer.zero_grad()
        loss = sum(self.model(batch.float().unsqueeze(1)).square().mean() for batch in batches)
        assert isinstance(loss, Tensor)
        loss.backward()
        self.optimizer.step()

    def evaluate(self, batch: Tensor) -> None:
        """Evaluate on the batch."""
        self.model.eval()
        with torch.no_grad():
            self.model(batch.float().unsqueeze(1))
        self.model.train()

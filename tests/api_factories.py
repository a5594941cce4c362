"""Small trainings of a person's own, and the runs over them."""

import json
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from harness.records.run import CommandKind, CommandRow, EventKind, EventRow
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.commands import checked_changes, declared_settings

Batch = tuple[Tensor, Tensor]
# Far more than a command takes to arrive.
ENOUGH_STEPS = 200_000


class SmallTraining:
    """A linear classifier with its optimizer and 64 samples."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model: nn.Module = nn.Linear(4, 2)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        data = TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
        self.loader: DataLoader[Any] = DataLoader(data, batch_size=8)

    def loss(self, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def step(self, batch: Batch) -> Tensor:
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def train(self, batches: Iterable[Batch] | None = None) -> list[float]:
        """Train, by default on one epoch of the loader, and return the losses."""
        return [self.step(batch).item() for batch in (self.loader if batches is None else batches)]

    def train_until(self, run: stepscope.Run, is_over: Callable[[], bool]) -> None:
        """Train on the same batch until `is_over`."""
        batch: Batch = next(iter(self.loader))
        for step in run.steps(count()):
            self.step(batch)
            assert step < ENOUGH_STEPS
            if is_over():
                return


def watch(training: SmallTraining, home: Path, name: str | None = None) -> stepscope.Run:
    return stepscope.watch(training.model, training.optimizer, home=home, name=name)


def folder_of(home: Path) -> RunFolder:
    """The folder of the only run of a home."""
    (folder,) = Home(home).runs()
    return folder


def send(home: Path, kind: CommandKind, **values: Any) -> str:
    """Send a command to the only run of a home, as a supervisor does, which would be another process;
    returns its id."""
    folder = folder_of(home)
    if kind is CommandKind.SET:
        values = checked_changes(values, lambda: declared_settings(folder))
    command = CommandRow(f"command-{kind}", 1, kind, json.dumps(values), "test")
    with ControlLog(folder) as control:
        control.send(command)
    return command.command_id


def log_of(home: Path) -> LogReader:
    return LogReader(folder_of(home).log)


def events(home: Path, kind: EventKind) -> list[EventRow]:
    with log_of(home) as log:
        return [event for _, event in log.events() if event.kind == kind]


def scalar(home: Path, name: str) -> list[tuple[int, float | None]]:
    """The values of a scalar by step."""
    with log_of(home) as log:
        return [(row.first_step, row.total) for row in log.script.scalars(name, 0, 10_000, 10_001)]


def settings(home: Path) -> list[dict[str, Any]]:
    """The recorded settings by version."""
    with log_of(home) as log:
        return [json.loads(row.settings) for row in log.settings_history()]

"""A plain training loop of a person's own, in one step of which something else happens."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from harness.attach.session import Session
from tests.attach_factories import attached, recorded

SAMPLES, BATCH = 90, 4
STEPS = -(-SAMPLES // BATCH)
EVENTFUL = 15
EXTRAS = [
    f"{event} {place}"
    for event in ("evaluation", "forward", "backward", "batch")
    for place in ("after the batch", "after the forward pass", "after the backward pass", "after the update")
]


class Loop:
    """A plain loop over uneven batches, of a loader or cut by itself; in step `EVENTFUL` something else
    happens as well.

    Attributes:
        has_loader: whether a loader makes the batches.
    """

    def __init__(self, extra: str = "", *, has_loader: bool = True) -> None:
        torch.manual_seed(3)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.data = TensorDataset(torch.randn(SAMPLES, 4))
        self.losses: list[float] = []
        self._extra = extra
        self.has_loader = has_loader

    def train(self, session: Session | None = None) -> int:
        """Take all steps; return how many of them were plain."""
        count = 0
        for step, inputs in enumerate(self._batches(), start=1):
            self._happens(step, "after the batch", inputs)
            loss = self.model(inputs).square().mean()
            self._happens(step, "after the forward pass", inputs)
            self.optimizer.zero_grad()
            loss.backward()
            self._happens(step, "after the backward pass", inputs)
            count += session is not None and bool(session.plain.times_ns)
            self.optimizer.step()
            self._happens(step, "after the update", inputs)
            self.losses.append(loss.item())
        return count

    def _batches(self) -> Iterable[torch.Tensor]:
        if self.has_loader:
            return (inputs for (inputs,) in DataLoader(self.data, batch_size=BATCH))
        batches: tuple[torch.Tensor, ...] = self.data.tensors[0].split(BATCH)
        return batches

    def _happens(self, step: int, place: str, inputs: torch.Tensor) -> None:
        if step != EVENTFUL or not self._extra.endswith(place):
            return
        match self._extra.split()[0]:
            case "evaluation":
                self.model.eval()
                with torch.no_grad():
                    self.model(inputs)
                self.model.train()
            case "forward":
                self.model(inputs)
            case "backward":
                self.model(inputs).sum().backward()
            case "batch":
                next(iter(DataLoader(self.data, batch_size=2)))


def watched(home: Path, loop: Loop) -> tuple[int, list[Any], dict[int, int]]:
    """Train under watch; return the number of plain steps, the rows, and the unexplained gaps."""
    with attached(home) as (session, folder, guard):
        plain = loop.train(session)
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    return plain, log.steps, log.unexplained_gaps_ns()

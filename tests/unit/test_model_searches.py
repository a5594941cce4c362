"""How often a script's objects are searched for the models of its optimizers."""

from pathlib import Path

import pytest
import torch
from torch import nn

from harness.attach import discovery, session
from harness.store.reader import LogReader
from tests.attach_factories import attached


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of parameters that were searched for."""
    found: list[int] = []

    def find(parameters: set[int], *others: object) -> list[nn.Module]:
        found.append(len(parameters))
        return discovery.find_models(parameters, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "find_models", find)
    return found


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(8, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_further_optimizer_of_a_model_that_is_called_needs_none(
    tmp_path: Path, searches: list[int]
) -> None:
    model = nn.Linear(4, 2)
    with attached(tmp_path) as (own, folder, guard):
        for _ in range(4):
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
        own.end(None)
    assert guard.message is None
    assert len(searches) == 1  # At the beginning.
    with LogReader(folder.log) as log:
        rows = log.last_steps(100)
    assert [row.samples for row in rows] == [8] * 12
    assert all(row.forward_ns for row in rows)

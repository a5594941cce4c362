"""Optimizers with a `step` that calls that of their base class, which is in use as well."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import Recorded, attached, recorded

_STEPS = 40


class Decaying(torch.optim.SGD):
    """Multiplies the weights by a factor before it updates them, and fails once if it is to."""

    fails_at = -1
    updates = 0

    def step(self, closure: Any = None) -> Any:
        self.updates += 1
        with torch.no_grad():
            for group in self.param_groups:
                for weights in group["params"]:
                    weights.mul_(0.999)
        if self.updates == self.fails_at:
            raise RuntimeError("out of luck")
        return super().step(closure)


@pytest.fixture(autouse=True)
def _base_class_in_use() -> None:
    torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)  # Torch wraps SGD.step once there is one.


def trained(home: Path, *, has_loader: bool) -> Recorded:
    """Train with batches of a loader or without one, and return the log."""
    with attached(home) as (session, folder, guard):
        net = nn.Linear(4, 1)
        optimizer = Decaying(net.parameters(), lr=0.1)
        loader = DataLoader(TensorDataset(torch.ones(2 * _STEPS, 4)), batch_size=2)
        batches = iter(loader) if has_loader else ([torch.ones(2, 4)] for _ in range(_STEPS))
        for (inputs,) in batches:
            optimizer.zero_grad()
            net(inputs).square().mean().backward()
            with suppress(RuntimeError):
                optimizer.step()
        session.end(None)
        assert guard.message is None
    return recorded(folder)


@pytest.mark.parametrize("has_loader", [False, True])
def test_a_step_that_calls_the_one_of_the_base_class_is_one(tmp_path: Path, has_loader: bool) -> None:
    assert len(trained(tmp_path, has_loader=has_loader).steps) == _STEPS


@pytest.mark.parametrize("has_loader", [False, True])
def test_steps_after_one_that_failed_are_counted(
    tmp_path: Path, has_loader: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Decaying, "fails_at", 20)
    assert len(trained(tmp_path, has_loader=has_loader).steps) == _STEPS - 1

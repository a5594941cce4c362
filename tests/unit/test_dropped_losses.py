"""A watch keeps no memory of a loss that the script has dropped, and survives one that cannot be read."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.attach_factories import attached, recorded

STEPS, ELEMENTS = 4, 1_000


def test_the_losses_of_all_elements_end_with_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their substitute is allocated once: a request in each step may fail where a GPU is full."""
    requests, new_empty = [], torch.Tensor.new_empty

    def count(loss: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        requests.append(loss.device)
        return new_empty(loss, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "new_empty", count)
    model = nn.Linear(10, ELEMENTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def add_gradients() -> weakref.ref[torch.UntypedStorage]:
        outputs = model(torch.ones(1, 10))
        loss = functional.mse_loss(outputs, torch.zeros_like(outputs))
        loss.backward()
        assert loss.untyped_storage().nbytes() == 4 * ELEMENTS
        return weakref.ref(loss.untyped_storage())

    kept = []
    with attached(tmp_path) as (session, folder, guard):
        for _ in range(STEPS):
            losses = [add_gradients(), add_gradients()]
            optimizer.step()
            optimizer.zero_grad()
            kept.append(sum(loss() is not None for loss in losses))
        assert guard.is_on
        session.end(None)
    steps = recorded(folder).steps
    assert (len(steps), kept) == (STEPS, [0] * STEPS)
    assert all(step.loss is not None and step.loss > 0 for step in steps)
    assert len(requests) == 1


def test_a_loss_in_the_layout_of_onednn_is_left_unread(tmp_path: Path) -> None:
    model = nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attached(tmp_path) as (session, folder, guard):
        for _ in range(STEPS):
            for _ in range(2):
                model(torch.ones(1, 10)).reshape(1).to_mkldnn().backward(torch.ones(1).to_mkldnn())
            optimizer.step()
            optimizer.zero_grad()
        assert guard.is_on
        session.end(None)
    assert [row.loss for row in recorded(folder).steps] == [None] * STEPS

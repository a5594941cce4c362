"""The last step of a script, if nothing ends it."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import attached, recorded


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_a_last_step_that_nothing_ends_lasts_until_its_last_event(
    tmp_path: Path, has_optimizer: bool
) -> None:
    """One without an optimizer, or with another one that is expected in the first step."""
    model, further = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (model, further) if has_optimizer]
    with attached(tmp_path) as (watched, folder, _):
        for (inputs,) in DataLoader(TensorDataset(torch.ones(3, 2)), batch_size=3):
            model(inputs).sum().backward()
            for optimizer in optimizers[:1]:
                optimizer.step()
        assert watched.watch is not None
        ended_ns = watched.watch.context.clock_ns()
        watched.end(None)
    assert [(row.step, row.samples, row.t_ns < ended_ns) for row in recorded(folder).steps] == [(1, 3, True)]

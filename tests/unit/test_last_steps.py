"""The last step of a script, if nothing ends it."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import attached, recorded, steps_of


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


def test_gradients_in_evaluation_mode_after_the_last_step_are_an_evaluation(tmp_path: Path) -> None:
    """As for a map of the pixels that matter, or the Fisher information."""
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.ones(15, 2)), batch_size=3)

    def train() -> None:
        for (inputs,) in loader:
            model(inputs).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        for (inputs,) in loader:
            model(inputs).sum().backward()

    log = steps_of(tmp_path, train)
    assert log.samples == [3] * 5
    assert log.evaluations_ns.keys() == {6}

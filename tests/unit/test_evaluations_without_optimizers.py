"""The evaluations of a script that updates its parameters without an optimizer of torch."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.attach_factories import steps_of

_STEPS = 8


def test_a_pass_with_gradients_over_another_loader_belongs_to_no_step(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(torch.randn(_STEPS * 4, 4)), 4)
    held_out = DataLoader(TensorDataset(torch.randn(21, 4)), 7)

    def train() -> None:
        for _ in range(2):
            for (inputs,) in loader:  # As with the backend of Keras.
                loss = model(inputs).square().mean()
                model.zero_grad()
                loss.backward()
            for (inputs,) in held_out:
                model(inputs)

    log = steps_of(tmp_path, train)
    assert log.samples == [4] * (2 * _STEPS)
    assert list(log.evaluations_ns) == [_STEPS + 1, 2 * _STEPS + 1]

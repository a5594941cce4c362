"""Test the samples of a model that is trained in evaluation mode, as with frozen statistics."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.attach_factories import steps_of


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_the_inputs_of_a_model_that_is_trained_in_evaluation_mode_are_samples(
    tmp_path: Path, micro_batches: int
) -> None:
    def script() -> None:
        model = nn.Linear(2, 1).eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(8):
            for _ in range(micro_batches):
                model(torch.ones(5, 2)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    assert samples[1:] == [5 * micro_batches] * 7


def test_calls_in_evaluation_mode_are_no_samples_of_a_step_that_trains(tmp_path: Path) -> None:
    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        for _ in range(8):
            inputs = torch.ones(5, 2, requires_grad=True)
            model.eval()(inputs).mean().backward()  # An attack on the model.
            model.train()(inputs).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    samples = [row.samples for row in steps_of(tmp_path, script).steps]
    assert samples[1:] == [5] * 7

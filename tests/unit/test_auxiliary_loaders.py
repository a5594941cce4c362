"""A loader beside the one of the training, from which a script reads a batch in some of its steps."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from harness.records.run import EventKind
from tests.attach_factories import Recorded, steps_of

STEPS, BATCH, FURTHER = 30, 4, 3


def trained(home: Path, *, every: int, reopens: bool) -> Recorded:
    """Train, with a batch of `FURTHER` samples more, read first, in one of so many steps. With `reopens` its
    loader is opened for each."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    main = DataLoader(TensorDataset(torch.randn(STEPS * BATCH, 4)), batch_size=BATCH)
    auxiliary = DataLoader(TensorDataset(torch.randn(STEPS * FURTHER, 4)), batch_size=FURTHER)

    def train() -> None:
        batches, further = iter(main), iter(auxiliary)
        for number in range(1, STEPS + 1):
            more = None
            if number % every == 0:
                further = iter(auxiliary) if reopens else further
                (more,) = next(further)
            (inputs,) = next(batches)
            loss = model(inputs).square().mean()
            if more is not None and not reopens:
                loss = loss + model(more).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return steps_of(home, train)


@pytest.mark.parametrize("every", [2, 5])
def test_a_pass_that_goes_on_from_earlier_steps_is_a_part_of_the_step(tmp_path: Path, every: int) -> None:
    log = trained(tmp_path, every=every, reopens=False)
    expected = [BATCH + FURTHER * (number % every == 0) for number in range(1, STEPS + 1)]
    assert [row.samples for row in log.steps] == expected
    assert log.evaluations_ns == {}
    assert log.values["batch_size"] == BATCH  # The main loader alone can still change.


def test_a_pass_that_is_opened_for_a_batch_is_an_evaluation(tmp_path: Path) -> None:
    log = trained(tmp_path, every=5, reopens=True)
    assert [row.samples for row in log.steps] == [BATCH] * STEPS
    assert EventKind.EVALUATION in {event.kind for event in log.events}

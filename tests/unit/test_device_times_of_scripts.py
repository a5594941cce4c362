"""Test the device times of a script's steps with work of no step among their marks, such as an evaluation."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harness.device.testing.device import FakeDevice, FakeQueue
from tests.attach_factories import attached, recorded

MS = 1_000_000
TRAINED_NS, EVALUATED_NS = 10 * MS, 1_000 * MS


class _Training:
    """Objects of a script. In evaluation mode its model takes `EVALUATED_NS` of the device."""

    def __init__(self, queue: FakeQueue) -> None:
        self.queue = queue
        self.model, self.optimizer = self._created()
        self.other, self.other_optimizer = self._created()

    def _created(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Linear(3, 1)
        model.register_forward_pre_hook(
            lambda model, _: self.queue.work(TRAINED_NS if model.training else EVALUATED_NS)
        )
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    @staticmethod
    def batches(count: int) -> "DataLoader[tuple[Tensor, ...]]":
        return DataLoader(TensorDataset(torch.randn(2 * count, 3)), batch_size=2)

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(3):
                self.model(torch.ones(2, 3))
        self.model.train()

    def step(self, inputs: Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(inputs).mean().backward()
        self.optimizer.step()


def _between_micro_batches(script: _Training) -> None:
    for number, (inputs,) in enumerate(script.batches(16)):
        script.model(inputs).mean().backward()
        if number == 10:
            script.evaluate()
        if number % 2:
            script.optimizer.step()
            script.optimizer.zero_grad()


def _after_its_batch(script: _Training) -> None:
    for number, (inputs,) in enumerate(script.batches(8)):
        if number == 5:
            script.evaluate()
        script.step(inputs)


def _with_dropped_gradients(script: _Training) -> None:
    for _ in range(2):
        for (inputs,) in script.batches(5):
            script.step(inputs)
        for (inputs,) in script.batches(4):
            script.optimizer.zero_grad()
            script.queue.work(EVALUATED_NS)
            script.model(inputs).mean().backward()
        script.optimizer.zero_grad()


def _before_the_batch_that_ends_it(script: _Training) -> None:
    for number, (inputs,) in enumerate(script.batches(8)):
        script.step(inputs)
        if number == 5:  # The other optimizer steps in each iteration but this one.
            script.evaluate()
            continue
        script.other_optimizer.zero_grad()
        script.other(inputs).mean().backward()
        script.other_optimizer.step()


@pytest.mark.parametrize(
    "train",
    [_between_micro_batches, _after_its_batch, _with_dropped_gradients, _before_the_batch_that_ends_it],
)
def test_no_device_time_has_work_of_no_step(tmp_path: Path, train: Callable[[_Training], None]) -> None:
    queue = FakeQueue()
    with attached(tmp_path) as (session, folder, guard):
        session._cpu = FakeDevice(queue=queue)  # type: ignore[assignment]  # in place of the CPU
        train(_Training(queue))
        assert guard.is_on
        session.end(None)
    steps = recorded(folder).steps
    untimed = [row for row in steps if row.device_step_ns is None]
    assert len(untimed) == 1
    assert untimed[0].device_forward_ns is None
    assert all((row.device_step_ns or 0) < EVALUATED_NS for row in steps)
    assert all((row.device_gap_ns or 0) < EVALUATED_NS for row in steps)
    assert all(row.loss is not None for row in steps)

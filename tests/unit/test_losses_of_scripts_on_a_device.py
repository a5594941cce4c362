"""Test that the loss of a script's step is read only once an asynchronous device has copied it."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.device.testing.device import FakeDevice, FakeQueue
from harness.watch.readback import LossReader, LossTicket
from tests.attach_factories import attached, recorded
from tests.backward_factories import BackwardUpdates

STEPS, POLLS_S = 4, 0.3


class CopyingReader(LossReader):
    """Copies each loss behind the work of a queue, and keeps those that are read before they have arrived."""

    def __init__(self, queue: FakeQueue) -> None:
        super().__init__(None)
        self.early, self.read = list[float](), list[float]()
        self._queue = queue
        self.take = self._copy

    def _copy(self, loss: Tensor) -> LossTicket:
        value, arrived = loss.item(), self._queue.event()
        arrived.record()

        def read() -> float:
            (self.read if arrived.query() else self.early).append(value)
            return value

        return read


def _by_optimizer() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
        time.sleep(POLLS_S)


def _by_hand() -> None:
    model = nn.Linear(3, 1)
    for _ in range(STEPS):
        model.zero_grad()
        time.sleep(POLLS_S)
        model(torch.ones(2, 3)).square().mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                assert weight.grad is not None
                weight.sub_(0.1 * weight.grad)


def _within_the_backward_pass() -> None:
    script = BackwardUpdates(is_one=False)
    for _ in range(STEPS):
        script.steps(1)
        time.sleep(POLLS_S)
    script.close()


@pytest.mark.slow
@pytest.mark.parametrize("train", [_by_optimizer, _by_hand, _within_the_backward_pass])
def test_a_loss_is_read_once_the_device_has_copied_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, train: Callable[[], None]
) -> None:
    queue = FakeQueue(lag_marks=1)
    reader = CopyingReader(queue)
    monkeypatch.setattr(LossReader, "of", lambda *_: reader)
    with attached(tmp_path) as (session, folder, guard):
        session._cpu = FakeDevice(queue=queue)  # type: ignore[assignment]  # in place of the CPU
        train()
        assert guard.is_on
        session.end(None)
    log = recorded(folder)
    assert len(reader.read) == len(log.steps) == STEPS
    assert not reader.early
    # Nothing ends the last step by hand: it ends with its newest event, after which the device has no mark.
    timed = log.steps[:-1] if train is _by_hand else log.steps
    assert all(row.device_step_ns is not None for row in timed)


def test_a_step_of_plain_operations_without_a_loader_has_no_gap(tmp_path: Path) -> None:
    """The begin of its forward pass is unknown."""
    queue = FakeQueue()
    with attached(tmp_path) as (session, folder, guard):
        session._cpu = FakeDevice(queue=queue)  # type: ignore[assignment]  # in place of the CPU
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(STEPS):
            optimizer.zero_grad()
            queue.work(50_000_000)
            (weight * 2).sum().backward()
            optimizer.step()
        assert guard.is_on
        session.end(None)
    steps = recorded(folder).steps
    assert len(steps) == STEPS
    assert all(row.device_step_ns is not None and row.device_gap_ns is None for row in steps[1:])

"""The device that a script's training is watched on, where its tensors are on several."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.attach.discovery import training_device
from harness.attach.scalars import DeviceReads, ScalarWriter
from harness.device.cpu.device import CpuDevice
from harness.records.script import ScalarRow
from harness.watch.readback import LossReader, SlotTicket
from tests.attach_factories import attached, recorded
from tests.placement_factories import CPU, FIRST, SECOND, on


class Weights(nn.Module):
    """A model of weights on several devices."""

    def __init__(self, *weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.ParameterList(map(nn.Parameter, weights))


def test_a_training_is_on_the_accelerator_with_the_most_bytes_of_weights() -> None:
    embedding = torch.ones(10_000)
    assert training_device(Weights(embedding), []) == CPU
    assert training_device(Weights(embedding, on(SECOND, 4)), []) == SECOND
    assert training_device(Weights(embedding, on(FIRST, 4), on(SECOND, 8)), []) == SECOND
    assert training_device(Weights(embedding, torch.empty(9, device="meta")), []) == CPU


def test_weights_of_the_optimizer_alone_count_and_each_one_once() -> None:
    model = Weights(on(FIRST, 6))
    others = Weights(torch.ones(3), on(SECOND, 8))
    optimizer = torch.optim.SGD([*others.parameters()], lr=0.1)
    assert training_device(model, [torch.optim.SGD(model.parameters(), lr=0.1)]) == FIRST
    assert training_device(model, [optimizer]) == SECOND


def test_a_lazy_weight_has_a_device_before_it_has_a_size() -> None:
    assert training_device(nn.LazyLinear(3), []) == CPU


def test_weights_that_fsdp_offloads_are_computed_with_on_the_current_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of `fully_shard(model, offload_policy=CPUOffloadPolicy())`: DTensors whose shards are on the
    CPU, and whose mesh is of GPUs."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    model = nn.Linear(2, 2)
    for weight in model.parameters():
        weight.device_mesh = SimpleNamespace(device_type="cuda")  # type: ignore[attr-defined]
    assert training_device(model, []) == SECOND


def test_the_watch_opens_the_device_of_most_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_device(selector: str, **_: Any) -> CpuDevice:
        opened.append(selector)
        return CpuDevice.open()

    monkeypatch.setattr("harness.attach.session.open_device", open_device)
    model = Weights(torch.ones(3), on(SECOND, 8))
    with attached(tmp_path) as (session, _, guard):
        session.begin([model], [torch.optim.SGD(model.parameters(), lr=0.1)])
        assert guard.is_on
    assert opened == ["cuda:1"]


class LossElsewhere(torch.autograd.Function):
    """A loss on an accelerator, of weights on the CPU. Reading it raises an error, as it has no memory."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        return torch.zeros((), device="meta")

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Tensor:
        return torch.ones(3)


class Event:
    """An event that the device reaches when a test says so."""

    is_reached = False

    def record(self) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        return self.is_reached


class Halves(LossReader):
    """Returns 0.5 for each number."""

    def __init__(self) -> None:
        super().__init__(torch.full((1,), 0.5))

    def take_slot(self, loss: torch.Tensor) -> SlotTicket:
        return SlotTicket(self._slots[0], 0, self._free)


@pytest.mark.parametrize("logs", [False, True])
def test_the_loss_on_an_accelerator_is_left_unread_where_all_weights_are_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: bool
) -> None:
    weight, event = nn.Parameter(torch.ones(3)), Event()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with attached(tmp_path) as (session, folder, guard):
        for _ in range(12):
            optimizer.zero_grad()
            LossElsewhere.apply(weight).backward()  # type: ignore[no-untyped-call]
            if logs and session.watch is not None:
                monkeypatch.setattr(DeviceReads, "of", lambda _device: DeviceReads(Halves(), lambda: event))
                session.remarks.log({"loss": on(SECOND, 1)})  # Reading it raises an error, too.
            optimizer.step()
        assert guard.is_on
        event.is_reached = True
        session.end(None)
    log = recorded(folder)
    assert [row.loss for row in log.steps] == [None] * 12
    reasons = [event.message for event in log.events if event.label == "loss not read"]
    assert len(reasons) == 1
    assert "The loss is on meta, while all weights are on the CPU" in reasons[0]


def test_a_number_on_an_accelerator_is_not_waited_for_in_a_training_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnGpu:
        """Raises TypeError where it is read as a number."""

        device = SECOND

    event, devices, rows = Event(), list[torch.device](), list[ScalarRow]()

    def reads_of(device: torch.device) -> DeviceReads:
        devices.append(device)
        return DeviceReads(Halves(), lambda: event)

    monkeypatch.setattr(DeviceReads, "of", reads_of)
    writer = ScalarWriter(rows.append, lambda: 7, None)
    writer.write(1, {"loss": OnGpu(), "lr": 0.1})  # type: ignore[dict-item]
    assert rows == [ScalarRow(1, "lr", 7, 0.1, 0)]
    event.is_reached = True
    writer.write(2, {"lr": 0.1, "loss": OnGpu()})  # type: ignore[dict-item]
    assert devices == [SECOND]
    assert rows[2:] == [ScalarRow(1, "loss", 7, 0.5, 0), ScalarRow(2, "loss", 7, 0.5, 0)]

"""Test the CUDA graphs of scripts, by captures and replays of torch's names that do their work on the CPU."""

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.cuda import CUDAGraph
from torch.utils.data import DataLoader, TensorDataset

from harness.attach.graphs import REPLAYED
from harness.attach.scalars import DeviceReads
from harness.device.testing.device import FakeDevice, FakeQueue
from harness.watch.readback import LossReader
from tests.attach_factories import Recorded, attached, recorded, steps_of

_BATCH, _STEPS = 4, 5
_MS = 1_000_000
_Work = Callable[[], object]


@pytest.fixture(autouse=True)
def _graphs_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(graph: Any) -> None:
        graph.work()

    for name, function in (
        ("capture_begin", lambda graph: None),
        ("capture_end", lambda graph: None),
        ("replay", replay),
    ):
        monkeypatch.setattr(CUDAGraph, name, function)


class _GraphOnCpu(CUDAGraph):
    work: _Work

    def __new__(cls) -> "_GraphOnCpu":
        # A build for CUDA has a class of C++ here, others a stand-in that cannot be made.
        base = torch._C._CUDAGraph if torch.backends.cuda.is_built() else object
        graph: _GraphOnCpu = base.__new__(cls)
        return graph

    def __del__(self) -> None:
        """Without torch's, which needs a GPU."""


def _graph_on_cpu() -> _GraphOnCpu:
    """Return a graph without a call of its constructor, which needs a GPU."""
    return _GraphOnCpu.__new__(_GraphOnCpu)


@contextmanager
def _capture(graph: CUDAGraph) -> Iterator[None]:
    graph.capture_begin()
    try:
        yield
    finally:
        graph.capture_end()


class _Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.inputs = torch.zeros(_BATCH, 3)
        self.loss = torch.zeros(())
        data = TensorDataset(torch.randn(_STEPS * _BATCH, 3))
        self.loader: DataLoader[tuple[Tensor, ...]] = DataLoader(data, batch_size=_BATCH)

    def compute(self) -> Tensor:
        loss: Tensor = self.model(self.inputs).square().mean()
        loss.backward()
        return loss

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.compute()
        self.optimizer.step()
        return loss

    def replayed(self) -> None:
        """A step's arithmetic, which no hook sees, into the tensor of the loss that was captured."""
        with torch.no_grad():
            outputs = self.inputs @ self.model.weight.T + self.model.bias
            self.loss.copy_(outputs.square().mean())
            gradient = 2 * outputs / _BATCH
            self.model.weight.sub_(0.1 * gradient.T @ self.inputs)
            self.model.bias.sub_(0.1 * gradient.sum(0))

    def replay_steps(self, graph: CUDAGraph) -> list[float]:
        losses = []
        for (batch,) in self.loader:
            self.inputs.copy_(batch)
            graph.replay()
            losses.append(float(self.loss))
        return losses


def _replayed(home: Path) -> tuple[Recorded, list[float], list[float]]:
    warm, replayed = list[float](), list[float]()

    def train() -> None:
        training, graph = _Training(), _graph_on_cpu()
        warm.extend(training.step().item() for _ in range(3))
        with _capture(graph):
            training.loss = training.step().detach()
        graph.work = training.replayed
        replayed.extend(training.replay_steps(graph))

    return steps_of(home, train), warm, replayed


def test_replays_of_a_graph_with_an_update_are_steps_with_their_samples_and_losses(tmp_path: Path) -> None:
    log, warm, replayed = _replayed(tmp_path)
    assert [row.step for row in log.steps] == list(range(1, 3 + _STEPS + 1))
    assert [row.samples for row in log.steps[-_STEPS:]] == [_BATCH] * _STEPS
    assert [row.loss for row in log.steps[:3]] == pytest.approx(warm)
    # On the CPU a loss is read some time after its step, and each replay has the same tensor.
    assert {row.loss for row in log.steps[3:]} <= set(replayed)
    assert [event.message for event in log.events if event.label == "CUDA graph"] == [REPLAYED]


def test_what_is_captured_is_no_step(tmp_path: Path) -> None:
    def train() -> None:
        training = _Training()
        for _ in range(3):
            training.step()
        for _ in range(2):
            with _capture(_graph_on_cpu()):
                training.step()
        training.step()

    log = steps_of(tmp_path, train)
    assert [row.step for row in log.steps] == [1, 2, 3, 4]
    assert not [event.label for event in log.events if event.label == "second training thread"]


@pytest.mark.parametrize("is_scaled", [False, True])
def test_a_graph_without_an_update_makes_no_step_and_has_its_loss(tmp_path: Path, is_scaled: bool) -> None:
    def train() -> None:
        training, graph = _Training(), _graph_on_cpu()
        training.inputs.fill_(1.0)
        training.step()
        scaler = torch.amp.GradScaler("cpu", enabled=is_scaled)
        with _capture(graph):
            loss = training.model(training.inputs).square().mean()
            scaler.scale(loss).backward()
        losses.append(loss.item())
        kept.append(weakref.ref(loss))
        del loss
        graph.work = lambda: None
        for _ in range(2):
            graph.replay()
            scaler.step(training.optimizer)
            scaler.update()

    losses, kept = list[float](), list[weakref.ref[Tensor]]()
    log = steps_of(tmp_path, train)
    assert [row.loss for row in log.steps[1:]] == pytest.approx(losses * 2)
    assert kept[0]() is None


def test_a_capture_that_fails_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: CUDAGraph) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    def train() -> None:
        training = _Training()
        training.step()
        with pytest.raises(RuntimeError, match="not permitted"), _capture(_graph_on_cpu()):
            training.step()
        training.step()

    monkeypatch.setattr(CUDAGraph, "capture_end", fail)
    assert len(steps_of(tmp_path, train).steps) == 2


def test_a_capture_in_another_thread_leaves_the_training_followed(tmp_path: Path) -> None:
    def train() -> None:
        training, graph = _Training(), _graph_on_cpu()
        training.step()
        begin = threading.Thread(target=graph.capture_begin)
        begin.start()
        begin.join()
        training.step()
        end = threading.Thread(target=graph.capture_end)
        end.start()
        end.join()
        training.step()

    assert len(steps_of(tmp_path, train).steps) == 3


def test_torchs_functions_are_restored(tmp_path: Path) -> None:
    before = CUDAGraph.capture_begin, CUDAGraph.capture_end, CUDAGraph.replay
    with attached(tmp_path) as (session, folder, _):
        _Training().step()
        assert CUDAGraph.capture_begin is not before[0]
        session.end(None)
    assert (CUDAGraph.capture_begin, CUDAGraph.capture_end, CUDAGraph.replay) == before
    assert len(recorded(folder).steps) == 1


def _replayed_on_a_device(home: Path, *, is_whole: bool) -> Recorded:
    """Three steps and five replays of 50 ms of the device's time, without a loader."""
    queue = FakeQueue()
    with attached(home) as (session, folder, guard):
        session._cpu = FakeDevice(queue=queue)  # type: ignore[assignment]  # in place of the CPU
        training, graph = _Training(), _graph_on_cpu()
        for _ in range(3):
            training.step()
        with _capture(graph):
            training.loss = (training.step() if is_whole else training.compute()).detach()
        graph.work = lambda: queue.work(50 * _MS)
        for _ in range(5):
            training.inputs.copy_(torch.ones(_BATCH, 3))
            graph.replay()
            if not is_whole:
                training.optimizer.step()
        assert guard.is_on
        session.end(None)
    return recorded(folder)


@pytest.mark.parametrize(
    ("is_whole", "phase"), [(True, "device_optimizer_ns"), (False, "device_backward_ns")]
)
def test_the_device_time_of_a_replay_is_a_phase_of_its_step(
    tmp_path: Path, is_whole: bool, phase: str
) -> None:
    for row in _replayed_on_a_device(tmp_path, is_whole=is_whole).steps[3:]:
        assert 50 * _MS <= getattr(row, phase) < 60 * _MS
        assert 50 * _MS <= (row.device_step_ns or 0) < 60 * _MS
        assert (row.device_gap_ns or 0) < 10 * _MS


def test_what_is_logged_within_a_capture_takes_no_part_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[str]()

    class Event:
        def record(self) -> None:
            calls.append("record")

        def query(self) -> bool:
            calls.append("query")
            return False

    reads = DeviceReads(LossReader(torch.zeros(64)), Event)
    monkeypatch.setattr(DeviceReads, "of", lambda _device: reads)
    with attached(tmp_path) as (session, _, guard):
        session._cpu = FakeDevice()  # type: ignore[assignment]  # in place of the CPU
        training = _Training()
        training.step()
        reads.request([])
        calls.clear()
        with _capture(_graph_on_cpu()):
            session.remarks.log({"loss": training.step().detach()})
            session.remarks.phase_ended("phase/augment", 1_000)
        assert not calls
        session.remarks.phase_ended("phase/augment", 1_000)
        assert calls
        assert guard.is_on
        session.end(None)

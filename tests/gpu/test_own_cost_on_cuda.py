"""What observing costs on a GPU: the training thread's time, and what the run itself says of it."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.analysis.timing.own_cost import ASYNCHRONOUS
from harness.data.source import open_source
from harness.device.find import open_device
from harness.device.protocol import Device
from harness.models.building import build_model
from harness.observers.dispatch import Dispatcher, Guard, Progress
from harness.observers.own_cost import OwnCostMeter
from harness.observers.recorder import Recorder
from harness.own_cost_records import OwnCostRow
from harness.selection import resolve
from harness.train.journal import Marks
from harness.train.loop import StepListener, take_step, take_unobserved_step, train
from harness.train.memory import MemoryWatch
from harness.train.readback import LossReader
from harness.train.timing import StepTimer
from harness.train.unobserved import Unobserved
from harness.train.workload import Workload

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

MOST_US = 50.0
BLOCK = 6
"""Steps issued in a row: few enough for the device's queue to take them without making the CPU wait."""
SLOW_NS = 300_000
Record = Callable[[str, object], None]


@pytest.fixture
def device() -> Iterator[Device]:
    found = open_device("cuda")
    yield found
    torch.cuda.empty_cache()


class Spinning:
    """An observer that keeps the training thread busy."""

    def step_ended(self, *_: Any) -> None:
        until_ns = time.perf_counter_ns() + SLOW_NS
        while time.perf_counter_ns() < until_ns:
            pass


class Steps:
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def proceed(self, step: int) -> bool:
        return step <= self._steps


class Rig:
    """A small model whose steps keep the device busy for at least `busy_ms`, with a run's observers."""

    def __init__(self, device: Device, busy_ms: float, *, is_slow: bool = False) -> None:
        settings = resolve({"device": "cuda", "data": "synthetic", "model": "mlp"})
        source = open_source(settings)
        with device.torch_device:
            network = build_model(settings, source.shape)
        self.device, self.workload = device, Workload(settings, device, network, source)
        zero_ns = time.perf_counter_ns()
        self.timer, self.losses = (
            StepTimer(time.perf_counter_ns, device.clock()),
            LossReader.of(device.torch_device),
        )
        self.marks, self.told = Marks(flags=0), list[Any]()
        memory = MemoryWatch(device)
        self.recorder = Recorder(memory, self.marks, self.told.append, zero_ns, has_device_clock=True)
        self.meter = OwnCostMeter(ASYNCHRONOUS, self.told.append)
        listeners: dict[str, StepListener] = {"recorder": self.recorder}
        if is_slow:
            listeners["slow"] = Spinning()
        self.progress = Progress(zero_ns)
        self.listener = Dispatcher(listeners, Guard(_fail), self.progress)
        cycles = int(busy_ms * _cycles_a_ms()) if busy_ms else 0
        forward = self.workload.forward

        def busy(inputs: Tensor, targets: Tensor) -> Tensor:
            if cycles:
                torch.cuda._sleep(cycles)
            return forward(inputs, targets)

        self.workload.forward = busy

    def observed(self, step: int) -> None:
        times_ns, ticket, loss = take_step(self.workload, self.timer, self.losses, step)
        self.listener.step_ended(step, times_ns, ticket, loss, self.workload.samples_per_step, None)

    def unobserved(self, step: int) -> None:
        take_unobserved_step(self.workload, self.timer, [], step)

    def issue_us(self, take: Callable[[int], None]) -> float:
        """The training thread's time for a step, of a block that the device works off afterwards."""
        began_ns = time.perf_counter_ns()
        for step in range(BLOCK):
            take(step)
        spent_ns = time.perf_counter_ns() - began_ns
        self.device.synchronize()
        self.recorder.collect()
        self.timer.restart()
        return spent_ns / BLOCK / 1e3


def _fail(name: str, error: str) -> None:
    raise AssertionError(f"{name}: {error}")


def _cycles_a_ms() -> float:
    cycles, begin, end = (
        20_000_000,
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
    )
    torch.cuda._sleep(cycles)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    end.synchronize()
    return cycles / float(begin.elapsed_time(end))


@pytest.mark.parametrize(("length_ms", "pairs"), [(1, 100), (10, 60), (100, 20)])
def test_observing_a_step_costs_the_training_thread_at_most_fifty_microseconds(
    device: Device, length_ms: int, pairs: int, record_property: Record
) -> None:
    rig = Rig(device, length_ms)
    try:
        for take in (rig.observed, rig.unobserved) * 3:
            rig.issue_us(take)
        extra_us = [rig.issue_us(rig.observed) - rig.issue_us(rig.unobserved) for _ in range(pairs)]
    finally:
        rig.workload.close()
    low, middle, high = statistics.quantiles(extra_us, n=4)
    record_property(f"{length_ms} ms step: observing adds", f"{middle:.1f} µs ({low:.1f} to {high:.1f})")
    assert middle <= MOST_US


def _told(rig: Rig, device: Device) -> OwnCostRow:
    unobserved = Unobserved(
        ASYNCHRONOUS, rig.workload, rig.timer, rig.marks, rig.progress, rig.meter.block_ended
    )
    steps = ASYNCHRONOUS.known_after + 200

    class Draining(Steps):
        def proceed(self, step: int) -> bool:
            if step % 500 == 0:
                rig.meter.take(rig.recorder.collect())
            return super().proceed(step)

    try:
        train(rig.workload, Draining(steps), rig.timer, rig.losses, rig.listener, None, unobserved)
        device.synchronize()
        rig.meter.take(rig.recorder.collect())
    finally:
        rig.workload.close()
    rows = [row for row in rig.told if isinstance(row, OwnCostRow)]
    assert rows, "nothing was measured"
    return rows[-1]


def test_a_slow_observer_shows_where_the_cpu_sets_the_pace(device: Device, record_property: Record) -> None:
    found = _told(Rig(device, 0, is_slow=True), device)
    record_property("300 µs a step, launch-bound", found.message)
    assert found.low_ns > 0
    assert 0.7 * SLOW_NS < found.extra_ns < 1.5 * SLOW_NS


def test_a_slow_observer_costs_nothing_where_the_device_sets_the_pace(
    device: Device, record_property: Record
) -> None:
    found = _told(Rig(device, 4.0, is_slow=True), device)
    record_property("300 µs a step, hidden behind 4 ms of device time", found.message)
    assert abs(found.extra_ns) < 0.2 * SLOW_NS

"""A small model whose steps keep the device busy for a given time, with a run's observers: measures what
observing costs the training thread."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.analysis.timing.overhead import ASYNCHRONOUS
from harness.data.source import open_source
from harness.device.protocol import Device
from harness.models.building import build_model
from harness.settings.resolve import resolve
from harness.train.loop import take_step
from harness.train.workload import Workload
from tests.train_factories import FakeJournal, open_steps

BLOCK = 6
"""Steps issued in a row: few enough for the device's queue to take them without making the CPU wait."""
SLOW_NS = 300_000


class Overhead(NamedTuple):
    """Overhead on the training thread per step, in µs, and its time without observation."""

    low_us: float
    median_us: float
    high_us: float
    bare_us: float


class Spinning:
    """An observer that keeps the training thread busy."""

    def step_ended(self, *_: Any) -> None:
        until_ns = time.perf_counter_ns() + SLOW_NS
        while time.perf_counter_ns() < until_ns:
            pass


class Rig:
    """A small model whose steps keep the device busy for at least `busy_ms`, with a run's observers."""

    def __init__(self, device: Device, busy_ms: float, *, is_slow: bool = False) -> None:
        settings = resolve({"device": "cuda", "data": "synthetic", "model": "mlp"})
        source = open_source(settings)
        with device.torch_device:
            network = build_model(settings, source.shape)
        self.device, self.workload = device, Workload(settings, device, network, source)
        self.journal = FakeJournal()
        slow = {"slow": Spinning()} if is_slow else {}
        self.instruments, _, self.steps, _ = open_steps(
            device, self.workload, self.journal, plan=ASYNCHRONOUS, listeners=slow
        )
        self.timer, self.recorder = self.steps.timer, self.instruments.recorder
        cycles = int(busy_ms * _cycles_a_ms()) if busy_ms else 0
        forward = self.workload.forward

        def busy(inputs: Tensor, targets: Tensor) -> Tensor:
            if cycles:
                torch.cuda._sleep(cycles)
            return forward(inputs, targets)

        self.workload.forward = busy

    def observed(self, step: int) -> None:
        times_ns, ticket, loss = take_step(self.workload, self.timer, step)
        self.steps.step_ended(step, times_ns, ticket, loss, self.workload.samples_per_step, None)

    def unobserved(self, step: int) -> None:
        self.timer.unobserve()
        take_step(self.workload, self.timer, step)

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


def measure_overhead(rig: Rig, pairs: int) -> Overhead:
    """Blocks of observed and unobserved steps in turns: quartiles of their difference."""
    for take in (rig.observed, rig.unobserved) * 3:
        rig.issue_us(take)
    blocks = [(rig.issue_us(rig.observed), rig.issue_us(rig.unobserved)) for _ in range(pairs)]
    low, middle, high = statistics.quantiles((observed - bare for observed, bare in blocks), n=4)
    return Overhead(low, middle, high, statistics.median(bare for _, bare in blocks))

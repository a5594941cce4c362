"""The overhead of observing on the training thread, for steps of several lengths, and its parts."""

import statistics
import time
from collections.abc import Callable

import torch

from harness.device.event_clock import EventClock
from harness.device.find import open_device
from harness.device.protocol import Device, DeviceClock
from harness.records.run import Phase
from harness.watch.readback import LossReader
from tests.gpu.context import Context
from tests.gpu.cost_rig import Rig, measure_overhead

LENGTHS_MS = {"1 ms": (1, 100), "10 ms": (10, 60), "100 ms": (100, 8)}
"""By item: the length of a step, and the pairs of blocks."""
MARKS = "five phases marked, nothing else"
PARTS = "calls on a busy stream"
_BUSY_CYCLES = 400_000_000
"""Of the GPU: longer than the calls take."""
_PHASES = (Phase.DATA_WAIT, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
_REPEATS = 300


def measure(context: Context) -> None:
    """The marks alone, with an object of the stream per mark and as a run has it; the calls of a step, one by
    one; then each length."""
    device = open_device(context.device)
    for item in context.pending([MARKS]):
        context.put(item, mark_times(device))
    for item in context.pending([PARTS]):
        context.put(item, part_times(device))
    for item in context.pending(LENGTHS_MS):
        length_ms, pairs = LENGTHS_MS[item]
        rig = Rig(device, length_ms)
        try:
            context.put(item, measure_overhead(rig, pairs)._asdict())
        finally:
            rig.workload.close()


def mark_times(device: Device) -> dict[str, float]:
    """The median time of a step's marks, without the wait for the device behind them."""
    clock = device.clock()
    assert clock is not None
    return {
        "per_mark_us": _marks_us(EventClock(_event, 64), device),
        "own_us": _marks_us(clock, device),
    }


def part_times(device: Device) -> dict[str, float]:
    """The median times of calls behind a kernel that the GPU is at work on, and of a launch beside them."""
    event, stream = _event(), torch.cuda.current_stream()
    tensor = torch.ones((), device=device.torch_device)
    losses = LossReader.of(device.torch_device)

    def copy() -> None:
        ticket = losses.take(tensor)
        assert ticket is not None, "the ring of losses is full"

    parts: dict[str, Callable[[], object]] = {
        "launch_us": lambda: tensor.add_(1),
        "event_us": lambda: event.record(stream),
        "loss_us": copy,
        "memory_us": device.read_memory,
    }
    times = {}
    for name, act in parts.items():
        device.synchronize()
        torch.cuda._sleep(_BUSY_CYCLES)
        taken_ns = []
        for _ in range(_REPEATS):
            began_ns = time.perf_counter_ns()
            act()
            taken_ns.append(time.perf_counter_ns() - began_ns)
        times[name] = statistics.median(taken_ns) / 1e3
    device.synchronize()
    return times


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _marks_us(clock: DeviceClock, device: Device) -> float:
    taken_ns = []
    for _ in range(_REPEATS):
        began_ns = time.perf_counter_ns()
        clock.begin()
        for phase in _PHASES:
            clock.lap(phase)
        ticket = clock.end()
        taken_ns.append(time.perf_counter_ns() - began_ns)
        device.synchronize()
        if ticket is not None:
            ticket.resolve()
    return statistics.median(taken_ns) / 1e3

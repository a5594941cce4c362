"""Step times on a GPU: events against the profiler, gaps and residuals, and who waits for whom."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from harness.analysis.timing.phases import StepPart, Timing, analyze
from harness.analysis.timing.verdict import Bound, verdict
from harness.data.source import open_source
from harness.device.find import open_device
from harness.device.protocol import Device
from harness.models.building import build_model
from harness.records.run import Phase
from harness.settings.resolve import resolve
from harness.train.loop import train
from harness.train.workload import Workload
from harness.watch.context import Marks
from harness.watch.memory import MemoryWatch
from harness.watch.readback import LossReader
from harness.watch.recorder import Recorder
from harness.watch.timing import StepTimer
from tests.train_factories import LoopSteps

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(180)]

WARM_UP = 20
Record = Callable[[str, object], None]


class Steps:
    def __init__(self, steps: int) -> None:
        self._steps = steps

    def proceed(self, step: int) -> bool:
        return step <= self._steps


@pytest.fixture
def device() -> Iterator[Device]:
    result = open_device("cuda")
    yield result
    torch.cuda.empty_cache()


def timed(device: Device, steps: int, **values: Any) -> Timing:
    """The time of the last `steps` steps of a workload, after a warm-up."""
    settings = resolve({"device": "cuda", "data": "synthetic", **values})
    source = open_source(settings)
    with device.torch_device:
        network = build_model(settings, source.shape)
    workload = Workload(settings, device, network, source)
    try:
        zero_ns = time.perf_counter_ns()
        recorder = Recorder(
            MemoryWatch(device), Marks(flags=0), lambda event: None, zero_ns, has_device_clock=True
        )
        losses = LossReader.of(device.torch_device)
        timer = StepTimer(time.perf_counter_ns, device.clock(), losses=losses)
        train(workload, LoopSteps(Steps(WARM_UP + steps).proceed, recorder.step_ended, timer))
        device.synchronize()
        return analyze(recorder.collect()[WARM_UP:])
    finally:
        workload.close()


def _span_ns(prof: Any) -> float:
    """From the first kernel's start to the last one's end, as the profiler saw them."""
    cuda = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]  # not exported by name
    ranges = [event.time_range for event in prof.events() if event.device_type == cuda]
    assert ranges, "the profiler saw no kernel"
    span_us: float = max(one.end for one in ranges) - min(one.start for one in ranges)
    return 1e3 * span_us


def test_events_agree_with_the_profiler_within_three_per_cent(
    device: Device, record_property: Record
) -> None:
    weight = torch.randn(8192, 8192, device=device.torch_device)
    clock = device.clock()
    assert clock is not None
    ratios = []
    for attempt in range(9):
        device.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
            clock.begin()
            product = weight
            for _ in range(6):
                product = product @ weight
            clock.lap(Phase.FORWARD)
            ticket = clock.end()
            device.synchronize()
        assert ticket is not None
        times = ticket.resolve()
        assert times is not None
        if attempt >= 2:  # The first windows load the profiler and the matrix library.
            ratios.append(times.step_ns / _span_ns(prof))
    ratio = statistics.median(ratios)
    record_property("events / profiler", f"{ratio:.4f}")
    assert ratio == pytest.approx(1.0, abs=0.03)


def test_on_a_busy_gpu_parts_add_up_and_gaps_are_small(device: Device, record_property: Record) -> None:
    timing = timed(device, 60, model="transformer", preset="workstation", batch_size=128)
    assert timing.device is not None
    assert timing.cpu is not None
    assert timing.launch is not None
    period_ns = timing.device.step.mean + sum(
        result.spread.mean for result in timing.device.parts if result.part is StepPart.GAP
    )
    record_property("CPU step, device period", f"{timing.cpu.step.mean:.0f}, {period_ns:.0f} ns")
    gap, rest = timing.device.share(StepPart.GAP), timing.device.share(StepPart.RESIDUAL)
    record_property("gap, rest", f"{gap:.4f}, {rest:.4f}")
    assert sum(result.share for result in timing.device.parts) == pytest.approx(1.0)
    assert timing.unsound_steps == 0
    assert rest == pytest.approx(0.0, abs=0.02)
    assert gap < 0.1
    assert timing.launch.share < 0.5
    assert verdict(timing, True).bound is Bound.COMPUTE


def test_a_toy_is_launch_bound(device: Device, record_property: Record) -> None:
    timing = timed(device, 400, model="transformer", preset="laptop", batch_size=1)
    assert timing.launch is not None
    result = verdict(timing, True)
    record_property("issue, device", f"{timing.launch.issue_ns:.0f}, {timing.launch.device_ns:.0f} ns")
    record_property("launch-bound steps", f"{timing.launch.share:.2f}")
    assert result.bound is Bound.LAUNCH, result


def test_a_slow_loader_starves_the_gpu_and_is_named(device: Device, record_property: Record) -> None:
    timing = timed(device, 60, model="mlp", slow_loader_ms=10.0)
    assert timing.device is not None
    result = verdict(timing, True)
    record_property("idle at least", f"{timing.device.share(StepPart.GAP):.2f}")
    assert result.bound is Bound.INPUT, result

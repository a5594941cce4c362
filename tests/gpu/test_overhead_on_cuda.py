"""Measure what observing costs on a GPU: the training thread's time, and what the run itself says of it."""

import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from harness.analysis.timing.overhead import ASYNCHRONOUS
from harness.device.find import open_device
from harness.device.protocol import Device
from harness.records.overhead import OverheadRow
from harness.settings.spec import change
from harness.train.loop import train
from tests.gpu.cost_rig import SLOW_NS, Rig, measure_overhead

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(300)]

# Of the CPU's time to launch a small kernel: about twelve calls of CUDA per step, on a stream that is busy.
MOST_LAUNCHES = 30
Record = Callable[[str, object], None]


@pytest.fixture
def device() -> Iterator[Device]:
    result = open_device("cuda")
    yield result
    torch.cuda.empty_cache()


@pytest.mark.parametrize(("length_ms", "pairs"), [(1, 100), (10, 60), (100, 20)])
def test_observing_a_step_costs_the_training_thread_a_few_launches(
    device: Device, length_ms: int, pairs: int, record_property: Record
) -> None:
    rig = Rig(device, length_ms)
    try:
        low_us, median_us, high_us, _ = measure_overhead(rig, pairs)
    finally:
        rig.workload.close()
    launch = launch_us(device)
    figure = f"{median_us:.1f} µs ({low_us:.1f} to {high_us:.1f}), of {launch:.1f} µs per launch"
    record_property(f"{length_ms} ms step: observing adds", figure)
    assert median_us <= MOST_LAUNCHES * launch


def launch_us(device: Device, launches: int = 500) -> float:
    """The median time of the CPU for a small kernel."""
    tensor = torch.ones(8, device=device.torch_device)
    taken_ns = []
    for _ in range(launches):
        began_ns = time.perf_counter_ns()
        tensor.add_(1)
        taken_ns.append(time.perf_counter_ns() - began_ns)
    device.synchronize()
    return statistics.median(taken_ns) / 1e3


def _told(rig: Rig, device: Device) -> OverheadRow:
    steps = ASYNCHRONOUS.steps_needed + 200

    rig.workload.settings = change(rig.workload.settings, {"max_steps": steps})
    proceed = rig.steps.proceed

    def draining(step: int) -> bool:
        if step % 500 == 0:
            rig.journal.feed()
        return proceed(step)

    rig.steps.proceed = draining
    try:
        train(rig.workload, rig.steps)
        device.synchronize()
        rig.journal.feed()
    finally:
        rig.workload.close()
    rows: list[OverheadRow] = rig.journal.of(OverheadRow)
    assert rows, "nothing was measured"
    return rows[-1]


def test_a_slow_observer_shows_where_the_cpu_sets_the_pace(device: Device, record_property: Record) -> None:
    result = _told(Rig(device, 0, is_slow=True), device)
    record_property("300 µs a step, launch-bound", result.message)
    # Watching itself has its share, and the range is wide where launches vary.
    assert 0 < result.low_ns < 1.5 * SLOW_NS
    assert result.high_ns > SLOW_NS


def test_a_slow_observer_costs_nothing_where_the_device_sets_the_pace(
    device: Device, record_property: Record
) -> None:
    result = _told(Rig(device, 4.0, is_slow=True), device)
    record_property("300 µs a step, hidden behind 4 ms of device time", result.message)
    assert abs(result.extra_ns) < 0.2 * SLOW_NS

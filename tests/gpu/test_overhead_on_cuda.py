"""Measure what observing costs on a GPU: the training thread's time, and what the run itself says of it."""

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

MOST_US = 50.0
Record = Callable[[str, object], None]


@pytest.fixture
def device() -> Iterator[Device]:
    result = open_device("cuda")
    yield result
    torch.cuda.empty_cache()


@pytest.mark.parametrize(("length_ms", "pairs"), [(1, 100), (10, 60), (100, 20)])
def test_observing_a_step_costs_the_training_thread_at_most_fifty_microseconds(
    device: Device, length_ms: int, pairs: int, record_property: Record
) -> None:
    rig = Rig(device, length_ms)
    try:
        low_us, median_us, high_us, _ = measure_overhead(rig, pairs)
    finally:
        rig.workload.close()
    figure = f"{median_us:.1f} µs ({low_us:.1f} to {high_us:.1f})"
    record_property(f"{length_ms} ms step: observing adds", figure)
    assert median_us <= MOST_US


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
    assert result.low_ns > 0
    assert 0.7 * SLOW_NS < result.extra_ns < 1.5 * SLOW_NS


def test_a_slow_observer_costs_nothing_where_the_device_sets_the_pace(
    device: Device, record_property: Record
) -> None:
    result = _told(Rig(device, 4.0, is_slow=True), device)
    record_property("300 µs a step, hidden behind 4 ms of device time", result.message)
    assert abs(result.extra_ns) < 0.2 * SLOW_NS

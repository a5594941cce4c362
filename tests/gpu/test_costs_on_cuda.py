"""Measure what reading the allocator and marking events cost on a GPU; figures for the report of `make
gpu-check`.

Nothing here touches CUDA when it is imported.
"""

import statistics
import time
from collections.abc import Callable

import pytest
import torch

from harness.data.source import open_source
from harness.device.cuda.device import CudaDevice
from harness.device.event_clock import EventClock
from harness.device.find import open_device
from harness.device.protocol import DeviceClock
from harness.models.building import build_model
from harness.records.run import Phase
from harness.settings.resolve import resolve
from harness.train.workload import Workload
from tests.train_factories import a_step

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

Record = Callable[[str, object], None]
PHASES = (Phase.DATA_WAIT, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def median_us(act: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        began_ns = time.perf_counter_ns()
        act()
        taken.append((time.perf_counter_ns() - began_ns) / 1e3)
    return statistics.median(taken)


@pytest.mark.parametrize("blocks", [100, 10_000, 60_000])
def test_the_list_of_blocks_is_read_in_time(blocks: int, record_property: Record) -> None:
    device = open_device("cuda")
    device.begin_memory()
    tensors = [torch.empty(128, device=device.torch_device) for _ in range(blocks)]
    reading = device.read_allocator()
    assert reading.live_blocks is not None
    assert reading.live_blocks >= len(tensors)
    record_property(f"{blocks:,} blocks, ms", round(median_us(device.read_allocator, 5) / 1e3, 2))


def test_a_reading_of_the_counters_stays_in_microseconds(record_property: Record) -> None:
    device = open_device("cuda")
    device.begin_memory()
    torch.empty(1, device=device.torch_device)
    taken_us = median_us(device.read_memory, 500)
    record_property("read_memory, µs", round(taken_us, 1))
    assert taken_us < 1_000


def test_marks_cost_no_more_than_with_an_object_of_the_stream_per_mark(record_property: Record) -> None:
    device = open_device("cuda")
    assert isinstance(device, CudaDevice)

    def make_event() -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def step_us(clock: DeviceClock) -> float:
        def step() -> None:
            clock.begin()
            for phase in PHASES:
                clock.lap(phase)
            ticket = clock.end()
            device.synchronize()
            if ticket is not None:
                ticket.resolve()

        return median_us(step, 300)

    clock = device.clock()
    assert clock is not None
    plain, own = step_us(EventClock(make_event, 64)), step_us(clock)
    record_property("µs a step with its wait, an object of the stream per mark", round(plain, 1))
    record_property("µs a step with its wait, as a run has it", round(own, 1))
    assert own < 1.1 * plain


def test_nodes_that_are_kept_do_not_warn() -> None:
    """Warnings are errors in tests."""
    device = open_device("cuda")
    device.begin_memory()
    settings = resolve({"model": "mlp", "batch_size": 8})
    source = open_source(settings)
    with device.torch_device:
        model = build_model(settings, source.shape)
    workload = Workload(settings, device, model, source)
    side = torch.cuda.Stream(device.torch_device)
    side.wait_stream(torch.cuda.current_stream(device.torch_device))
    with torch.cuda.stream(side):
        a_step(workload)
    device.synchronize()

"""NVML's further metrics against what the GPU was made to do. Run with `make gpu-check`.

What this GPU, driver or container does not tell is reported with its reason, not failed.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pynvml
import pytest
import torch

from harness.device.cuda.device import CudaDevice
from harness.device.find import open_device
from harness.device.host.details import sees_machine_pids
from harness.device.host.probe import HostProbe
from harness.device.machine import MachineSampler
from harness.device.nvml.driver import Nvml
from harness.device.nvml.telemetry import NvmlTelemetry
from harness.device.protocol import DeviceDetails
from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.records.telemetry import HostDetailRow, PcieMethod
from harness.watch.jobs.telemetry import TelemetryRecorder
from tests.train_factories import FakeJournal, a_context

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

GIB = 1 << 30
Note = Callable[[str, object], None]


@pytest.fixture
def device() -> CudaDevice:
    result = open_device("cuda:0")
    assert isinstance(result, CudaDevice)
    return result


@pytest.fixture
def telemetry(device: CudaDevice) -> Iterator[NvmlTelemetry]:
    assert device.facts.uuid is not None
    warnings: list[str] = []
    result = NvmlTelemetry(Nvml(), [device.facts.uuid], warnings.append)
    yield result
    result.close()
    assert warnings == []


def read_details(telemetry: NvmlTelemetry) -> DeviceDetails:
    (details,) = telemetry.details()
    return details


def work(seconds: float) -> None:
    """Keep the GPU busy with matrix products on its tensor cores."""
    matrix = torch.full((8192, 8192), 1e-4, device="cuda:0", dtype=torch.bfloat16)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()


def test_what_is_told_and_why_the_rest_is_not(telemetry: NvmlTelemetry, record_property: Note) -> None:
    read_details(telemetry)
    work(1.0)
    details = read_details(telemetry)
    (missing,) = telemetry.missing().values()
    for name, value in details._asdict().items():
        record_property(name, value if value is not None else f"n/a: {missing.get(name, 'no reason')}")
        assert value is not None or name in missing
    assert details.processes is not None or "processes" in missing


def test_energy_agrees_with_power(telemetry: NvmlTelemetry, record_property: Note) -> None:
    before = read_details(telemetry)
    if before.energy_j is None:
        pytest.skip("this GPU has no energy counter")
    work(1.0)
    began_s, start = time.monotonic(), read_details(telemetry)
    watts = []
    for _ in range(20):
        work(0.2)
        (sample,) = telemetry.sample()
        watts.append(sample.power_w or 0.0)
    end, elapsed_s = read_details(telemetry), time.monotonic() - began_s
    assert start.energy_j is not None
    assert end.energy_j is not None
    counted_w = (end.energy_j - start.energy_j) / elapsed_s
    record_property("power by the energy counter", f"{counted_w:.0f} W")
    record_property("power as read", f"{statistics.mean(watts):.0f} W")
    assert counted_w == pytest.approx(statistics.mean(watts), rel=0.15)


def test_pcie_traffic_is_that_of_a_known_copy(telemetry: NvmlTelemetry, record_property: Note) -> None:
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    card = torch.empty(GIB, dtype=torch.uint8, device="cuda:0")
    card.copy_(host)
    torch.cuda.synchronize()
    read_details(telemetry)
    began_s = time.monotonic()
    for _ in range(64):
        card.copy_(host)
    torch.cuda.synchronize()
    after, elapsed_s = read_details(telemetry), time.monotonic() - began_s
    record_property("method", after.pcie_method)
    rate = after.pcie_received_bytes_per_s
    assert rate is not None
    copied = 64 * GIB / elapsed_s
    record_property("GiB/s copied and reported", f"{copied / GIB:.2f} and {rate / GIB:.2f}")
    if after.pcie_method != PcieMethod.GPM:
        pytest.skip("this GPU reports a window of 20 ms alone")
    # The packets' headers are included.
    assert 0.85 * copied <= rate <= 1.25 * copied


def test_gpm_sees_tensor_cores_at_work_and_idle(telemetry: NvmlTelemetry, record_property: Note) -> None:
    read_details(telemetry)
    work(2.0)
    torch.cuda.synchronize()
    busy = read_details(telemetry)
    if busy.tensor_active_pct is None:
        (missing,) = telemetry.missing().values()
        pytest.skip(f"no GPM: {missing['tensor_active_pct']}")
    time.sleep(0.5)  # The driver reads the counters some times a second.
    read_details(telemetry)
    time.sleep(1.0)
    idle = read_details(telemetry)
    for name in ("sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct"):
        record_property(f"{name}, busy and idle", f"{getattr(busy, name)}, {getattr(idle, name)}")
        assert 0 <= (getattr(busy, name) or 0.0) <= 100
    assert busy.sm_active_pct is not None
    assert busy.sm_active_pct > 50
    assert busy.tensor_active_pct > 20
    assert idle.tensor_active_pct is not None
    assert idle.tensor_active_pct < 5


def test_this_process_is_among_the_gpus_processes(
    telemetry: NvmlTelemetry, device: CudaDevice, record_property: Note
) -> None:
    retained = torch.empty(2 * GIB, dtype=torch.uint8, device=device.torch_device)
    torch.cuda.synchronize()
    processes = read_details(telemetry).processes
    record_property("processes", processes)
    record_property("machine's process numbers", sees_machine_pids())
    if processes is None or not sees_machine_pids():
        pytest.skip("process numbers cannot be matched here")
    own = [process for process in processes if process.pid == os.getpid()]
    assert len(own) == 1
    assert own[0].memory_bytes is None or own[0].memory_bytes >= retained.nbytes


def test_held_clocks_never_run_backwards(telemetry: NvmlTelemetry) -> None:
    before = read_details(telemetry)
    work(1.0)
    after = read_details(telemetry)
    for name in DeviceDetails._fields:
        if name.startswith("held_") and getattr(before, name) is not None:
            gained_ns = getattr(after, name) - getattr(before, name)
            assert 0 <= gained_ns <= 60 * 10**9


def test_the_sampler_costs_little(device: CudaDevice, record_property: Note) -> None:
    assert device.facts.uuid is not None
    journal = FakeJournal()
    telemetry = NvmlTelemetry(Nvml(), [device.facts.uuid], print)
    recorder = TelemetryRecorder(
        a_context(journal=journal, clock_ns=time.perf_counter_ns), [telemetry], HostProbe(list)
    )
    for _ in range(12):
        recorder.sample()
        work(0.5)
    telemetry.close()
    costs = journal.of(HostDetailRow)[2:]
    # Every second one has details: their counters take longest.
    cpu_ms = statistics.fmean(row.sampling_cpu_ns for row in costs) / 1e6
    record_property("processor time of a sample", f"{cpu_ms:.2f} ms")
    record_property("length", f"{statistics.median(row.sampling_wall_ns for row in costs) / 1e6:.2f} ms")
    assert cpu_ms <= 5.0, "over 0.5 % of one core at one sample a second"


def test_the_machine_is_seen_whole(device: CudaDevice) -> None:
    sampler = MachineSampler()
    sampler.sample()
    machine = sampler.sample()
    sampler.close()
    assert machine.nvml_problem is None
    assert device.facts.uuid in [uuid for uuid, _ in machine.gpus]
    assert set(machine.moments[-1].gpus) == {uuid for uuid, _ in machine.gpus}


def test_the_fake_answers_in_the_shape_of_the_real_driver(device: CudaDevice) -> None:
    assert device.facts.uuid is not None
    fake, gpu = FakeNvml(), FakeGpu()
    with Nvml() as nvml:
        library, handle = nvml.library, nvml.handle(device.facts.uuid)
        assert type(library.nvmlDeviceGetUUID(handle)) is type(fake.nvmlDeviceGetUUID(gpu))
        assert type(library.nvmlDeviceGetName(handle)) is type(fake.nvmlDeviceGetName(gpu))
        real = library.nvmlDeviceGetFieldValues(handle, [74])[0]
        message = fake.nvmlDeviceGetFieldValues(gpu, [74])[0]
        assert type(real) is type(message) is pynvml.c_nvmlFieldValue_t
        for process in library.nvmlDeviceGetComputeRunningProcesses(handle):
            for name in vars(fake.nvmlDeviceGetComputeRunningProcesses(gpu)[0]):
                assert hasattr(process, name)
        with suppress(library.NVMLError):  # An older GPU may not know the question.
            assert hasattr(library.nvmlGpmQueryDeviceSupport(handle), "isSupportedDevice")

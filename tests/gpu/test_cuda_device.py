"""The CUDA device against torch and the driver themselves. Run with `make gpu-check`.

Written for torch 2.11 and 2.13. Nothing here touches CUDA when it is imported.
"""

import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from harness.device.cuda.device import SEGMENT_BYTES, CudaDevice
from harness.device.doctor.examine import run_checks
from harness.device.doctor.report import Status
from harness.device.event_clock import EventClock
from harness.device.find import list_devices, open_device
from harness.device.nvml.driver import Nvml
from harness.device.nvml.telemetry import NvmlTelemetry
from harness.device.protocol import PhaseTimes
from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.errors import AbsentDeviceError, SettingError
from harness.records.run import AmpMode, DeviceKind, Phase

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    device = open_device("cuda:0")
    assert isinstance(device, CudaDevice)
    device.cap_memory(None)
    gc.collect()  # A test that expects an error leaves its frame, with its tensors, in a cycle.
    device.empty_cache()
    device.begin_memory()
    yield device
    device.cap_memory(None)
    device.empty_cache()


@pytest.fixture
def clock(device: CudaDevice) -> EventClock:
    clock = device.clock()
    assert isinstance(clock, EventClock)
    return clock


def block(mebibytes: int) -> torch.Tensor:
    return torch.empty(mebibytes * MIB, dtype=torch.uint8, device="cuda:0")


def compute(matrix: torch.Tensor, times: int) -> None:
    for _ in range(times):
        torch.mm(matrix, matrix)


@pytest.fixture
def matrix(device: CudaDevice) -> torch.Tensor:
    """A matrix whose product takes the GPU a noticeable while; warmed up."""
    matrix = torch.full((4096, 4096), 1e-4, device="cuda:0")
    compute(matrix, 3)
    torch.cuda.synchronize()
    return matrix


def test_facts_agree_with_torch(device: CudaDevice) -> None:
    properties = torch.cuda.get_device_properties(0)
    facts = device.facts
    assert facts.kind is DeviceKind.CUDA
    assert facts.torch_name == "cuda:0"
    assert facts.name == properties.name
    assert facts.memory_bytes == properties.total_memory
    assert facts.capability == torch.cuda.get_device_capability(0)
    assert facts.multiprocessors == properties.multi_processor_count
    assert (AmpMode.BF16 in facts.amp_modes) == torch.cuda.is_bf16_supported(including_emulation=False)
    assert AmpMode.FP16 in facts.amp_modes
    assert facts.uuid is not None
    assert str(properties.uuid) in facts.uuid


def test_every_gpu_is_listed_before_the_cpu() -> None:
    devices = list_devices()
    assert [facts.ordinal for facts in devices] == [*range(torch.cuda.device_count()), None]


def test_auto_is_the_first_gpu(device: CudaDevice) -> None:
    assert open_device("auto").facts == device.facts
    assert torch.cuda.current_device() == 0


def test_a_uuid_or_its_beginning_selects_the_gpu(device: CudaDevice) -> None:
    uuid = device.facts.uuid
    assert uuid is not None
    assert open_device(uuid).facts.ordinal == 0
    assert open_device(uuid.upper()).facts.ordinal == 0
    assert open_device(uuid[:20]).facts.uuid == uuid


def test_a_gpu_beyond_the_last_is_not_there() -> None:
    with pytest.raises(AbsentDeviceError, match=r"cuda:99 does not exist: this machine has .*cuda:0"):
        open_device("cuda:99")


CHILD = """
import json
from harness.device.find import open_device
from harness.errors import AbsentDeviceError
try:
    print(json.dumps(open_device("cuda").facts))
except AbsentDeviceError as error:
    print(json.dumps(str(error)))
"""


def in_child(visible: str) -> object:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    child = subprocess.run(
        [sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=100, env=environment
    )
    assert child.returncode == 0, child.stderr
    result: object = json.loads(child.stdout)
    return result


def test_cuda_visible_devices_is_honoured(device: CudaDevice) -> None:
    uuid = device.facts.uuid
    assert uuid is not None
    facts = in_child(uuid)
    assert isinstance(facts, list)
    assert facts[:3] == ["cuda", 0, uuid]
    message = in_child("")
    assert isinstance(message, str)
    assert message.startswith("cuda does not exist: ")
    assert "CUDA_VISIBLE_DEVICES is ''" in message


def timed_step(clock: EventClock, matrix: torch.Tensor) -> PhaseTimes:
    clock.begin()
    compute(matrix, 20)
    clock.lap(Phase.FORWARD)
    compute(matrix, 10)
    clock.lap(Phase.BACKWARD)
    ticket = clock.end()
    assert ticket is not None
    torch.cuda.synchronize()
    assert ticket.ready()
    times = ticket.resolve()
    assert times is not None
    return times


def test_the_clock_agrees_with_synchronised_wall_time(clock: EventClock, matrix: torch.Tensor) -> None:
    ratios = []
    for _ in range(5):
        began_ns = time.perf_counter_ns()
        times = timed_step(clock, matrix)
        ratios.append(times.step_ns / (time.perf_counter_ns() - began_ns))
        assert sum(times.phases_ns.values()) == pytest.approx(times.step_ns, rel=0.01)
    assert 0.7 < statistics.median(ratios) <= 1.01


def test_phases_share_the_step_as_their_work_does(clock: EventClock, matrix: torch.Tensor) -> None:
    shares = []
    for _ in range(5):
        times = timed_step(clock, matrix)
        shares.append(times.phases_ns[Phase.FORWARD] / times.phases_ns[Phase.BACKWARD])
    assert statistics.median(shares) == pytest.approx(2, rel=0.25)


def test_marking_does_not_wait_for_the_device(clock: EventClock, matrix: torch.Tensor) -> None:
    began_ns = time.perf_counter_ns()
    clock.begin()
    compute(matrix, 200)
    clock.lap(Phase.FORWARD)
    ticket = clock.end()
    issued_ns = time.perf_counter_ns() - began_ns
    assert ticket is not None
    assert not ticket.ready()
    torch.cuda.synchronize()
    assert ticket.ready()
    times = ticket.resolve()
    assert times is not None
    assert issued_ns < times.step_ns / 2


def test_the_gap_shows_how_long_the_device_had_nothing_to_do(clock: EventClock, matrix: torch.Tensor) -> None:
    assert timed_step(clock, matrix).gap_ns is None
    time.sleep(0.05)
    gap_ns = timed_step(clock, matrix).gap_ns
    assert gap_ns is not None
    assert 45e6 < gap_ns < 200e6


def test_events_come_back_to_the_ring(device: CudaDevice, clock: EventClock) -> None:
    waiting = []
    for _ in range(5000):
        clock.begin()
        clock.lap(Phase.FORWARD)
        clock.lap(Phase.BACKWARD)
        waiting.append(clock.end())
        while waiting and (waiting[0] is None or waiting[0].ready()):
            ticket = waiting.pop(0)
            assert ticket is not None
            times = ticket.resolve()
            assert times is not None
            assert times.step_ns >= 0
    device.synchronize()
    assert all(ticket is not None for ticket in waiting)


def test_a_reading_equals_torchs_own_figures(device: CudaDevice) -> None:
    retained = block(100)
    gone = block(50)
    del gone
    expected = (
        torch.cuda.memory_allocated(0),
        torch.cuda.memory_reserved(0),
        torch.cuda.max_memory_allocated(0),
        torch.cuda.max_memory_reserved(0),
    )
    reading = device.read_memory()
    assert expected == (
        reading.allocated_bytes,
        reading.reserved_bytes,
        reading.peak_allocated_bytes,
        reading.peak_reserved_bytes,
    )
    assert reading.active_bytes is not None
    assert reading.active_bytes >= retained.nbytes
    assert reading.inactive_split_bytes is not None
    assert reading.alloc_retries is not None
    assert reading.ooms is not None


def test_the_peak_of_a_step_is_that_of_a_known_block(device: CudaDevice) -> None:
    device.read_memory()
    gone = block(64)
    del gone
    reading, following = device.read_memory(), device.read_memory()
    assert reading.allocated_bytes is not None
    assert reading.peak_allocated_bytes == reading.allocated_bytes + 64 * MIB
    assert following.peak_allocated_bytes == following.allocated_bytes


def test_reading_memory_takes_microseconds(
    device: CudaDevice, record_property: Callable[[str, object], None]
) -> None:
    retained = [block(1) for _ in range(500)]
    costs = []
    for _ in range(200):
        began_ns = time.perf_counter_ns()
        device.read_memory()
        costs.append(time.perf_counter_ns() - began_ns)
    median_us = statistics.median(costs) / 1000
    record_property(f"read_memory with {len(retained)} blocks", f"{median_us:.1f} µs")
    assert median_us < 200


def test_marking_a_step_takes_microseconds(
    device: CudaDevice, clock: EventClock, record_property: Callable[[str, object], None]
) -> None:
    costs = []
    for _ in range(300):
        began_ns = time.perf_counter_ns()
        clock.begin()
        for phase in (Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            clock.lap(phase)
        ticket = clock.end()
        costs.append(time.perf_counter_ns() - began_ns)
        device.synchronize()
        assert ticket is not None
        ticket.resolve()
    median_us = statistics.median(costs) / 1000
    record_property("five events", f"{median_us:.1f} µs")
    assert median_us < 200


def test_emptying_the_cache_gives_reserved_memory_back(device: CudaDevice) -> None:
    gone = block(256)
    del gone
    before = device.read_memory().reserved_bytes
    device.empty_cache()
    after = device.read_memory().reserved_bytes
    assert before is not None
    assert after is not None
    assert before - after >= 256 * MIB


def test_the_cap_is_a_real_out_of_memory_error_and_can_be_lifted(device: CudaDevice) -> None:
    retained = block(64)
    cap_bytes = torch.cuda.memory_reserved(0) + 128 * MIB
    ooms_before = device.read_memory().ooms
    device.cap_memory(cap_bytes)
    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
            block(256)
    within = block(100)
    reading = device.read_memory()
    assert reading.reserved_bytes is not None
    assert reading.reserved_bytes <= cap_bytes
    assert ooms_before is not None
    assert reading.ooms is not None
    assert reading.ooms > ooms_before
    device.lift_cap_for_recovery()
    assert block(256).nbytes == 256 * MIB
    assert retained.nbytes + within.nbytes == 164 * MIB


def test_lifting_a_cap_restores_the_limit_of_the_process(device: CudaDevice) -> None:
    torch.cuda.set_per_process_memory_fraction(0.5, 0)
    try:
        device.cap_memory(torch.cuda.memory_reserved(0) + 128 * MIB)
        device.lift_cap_for_recovery()
        assert torch.cuda.get_per_process_memory_fraction(0) == pytest.approx(0.5, abs=1e-6)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


def test_a_cap_below_what_is_reserved_is_refused_with_the_smallest_that_works(device: CudaDevice) -> None:
    retained = block(512)
    with pytest.raises(SettingError, match="smallest cap that works now is") as refusal:
        device.cap_memory(256 * MIB)
    smallest = float(str(refusal.value).rsplit(" ", 1)[1].rstrip("."))
    assert smallest * 2**30 >= retained.nbytes + SEGMENT_BYTES
    device.cap_memory(math.ceil(smallest * 2**30))


def test_a_cache_in_the_way_of_a_cap_is_given_back(device: CudaDevice) -> None:
    gone = block(512)
    del gone
    device.cap_memory(256 * MIB)
    assert torch.cuda.memory_reserved(0) < 256 * MIB


def test_nvml_finds_the_gpu_by_its_uuid(device: CudaDevice) -> None:
    assert device.facts.uuid is not None
    assert device.facts.memory_bytes is not None
    warnings: list[str] = []
    telemetry = NvmlTelemetry(Nvml(), [device.facts.uuid], warnings.append)
    (before,) = telemetry.sample()
    retained = block(2048)
    torch.cuda.synchronize()
    (after,) = telemetry.sample()
    telemetry.close()
    assert warnings == []
    assert after.device == device.facts.uuid
    assert after.memory_total_bytes == pytest.approx(device.facts.memory_bytes, rel=0.05)
    assert before.memory_used_bytes is not None
    assert after.memory_used_bytes is not None
    assert after.memory_used_bytes - before.memory_used_bytes >= 0.9 * retained.nbytes
    assert after.util_pct is None or 0 <= after.util_pct <= 100
    assert after.power_limit_w == device.facts.power_limit_w
    print(after)


def test_the_fake_nvml_answers_in_the_shape_of_the_real_one(device: CudaDevice) -> None:
    assert device.facts.uuid is not None
    with Nvml() as nvml:
        library, handle = nvml.library, nvml.handle(device.facts.uuid)
        assert handle is not None
        fake, gpu = FakeNvml(), FakeGpu()
        utilization = library.nvmlDeviceGetUtilizationRates(handle)
        assert all(hasattr(utilization, name) for name in vars(fake.nvmlDeviceGetUtilizationRates(gpu)))
        memory = library.nvmlDeviceGetMemoryInfo(handle, library.nvmlMemory_v2)
        assert all(
            hasattr(memory, name) for name in vars(fake.nvmlDeviceGetMemoryInfo(gpu, library.nvmlMemory_v2))
        )
        assert type(library.nvmlDeviceGetPowerUsage(handle)) is type(fake.nvmlDeviceGetPowerUsage(gpu))
        assert type(nvml.driver_version()) is str
        cuda_version = nvml.cuda_version()
        assert cuda_version is not None
        assert cuda_version[0] >= 11
        with pytest.raises(library.NVMLError):
            library.nvmlDeviceGetHandleByUUID(gpu.uuid)


def test_the_doctor_finds_the_gpu_fit(device: CudaDevice) -> None:
    report = run_checks()
    checks = {check.name: check for check in report.checks}
    assert checks["CUDA and driver"].status is Status.OK
    assert checks["CUDA and driver"].value.endswith("they are compatible")
    assert checks["NVML"].status is Status.OK
    assert checks["cuDNN"].status is Status.OK
    first = report.devices[0]
    assert first.facts.uuid == device.facts.uuid
    capability = first.facts.capability
    assert capability is not None
    assert (first.tensor_cores is not None) == (capability >= (7, 0))
    print(report)

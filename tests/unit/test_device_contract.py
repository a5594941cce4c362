"""Test what every device promises, held against each of them: the CPU, the fakes, and a GPU where there is
one."""

import math
import threading
from collections.abc import Callable

import pytest
import torch

from harness.device.cpu.device import CpuDevice
from harness.device.find import open_device
from harness.device.protocol import AllocatorReading, Device
from harness.device.testing.accelerators import FakeMpsDevice, FakeXpuDevice
from harness.device.testing.device import FakeAllocator, FakeDevice
from harness.errors import SettingError
from harness.records.run import AmpMode, DeviceKind, Phase
from harness.settings.spec import SPECS, unavailable_reason

MIB = 1 << 20


def play_a_transient(allocator: FakeAllocator, step: int) -> None:
    """The fake's counterpart of the work that `busy` does on a real device."""
    allocator.allocate(64 * MIB)
    allocator.free(64 * MIB)


DEVICES: dict[str, Callable[[], Device]] = {
    "cpu": CpuDevice.open,
    "fake": lambda: FakeDevice(script=play_a_transient),
    "fake xpu": lambda: FakeXpuDevice(script=play_a_transient),
    "fake mps": FakeMpsDevice,
    "cuda": lambda: open_device("cuda"),
    "xpu": lambda: open_device("xpu"),
    "mps": lambda: open_device("mps"),
}
GPUS = {"cuda": torch.cuda.is_available, "xpu": torch.xpu.is_available, "mps": torch.mps.is_available}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.gpu] * (name in GPUS)) for name in DEVICES])
def device(request: pytest.FixtureRequest) -> Device:
    if request.param in GPUS and not GPUS[request.param]():
        pytest.skip(f"there is no {request.param} here")
    device = DEVICES[request.param]()
    device.begin_memory()
    return device


def busy(device: Device) -> None:
    """Hold 64 MiB for a moment, within a phase."""
    tensor = torch.zeros(64 * MIB, dtype=torch.uint8, device=device.torch_device)
    if isinstance(device, FakeMpsDevice):
        device.allocator.allocate(64 * MIB)
    device.note_peak()
    device.sample_peak()
    if isinstance(device, FakeMpsDevice):
        device.allocator.free(64 * MIB)
    del tensor


def test_facts_are_whole(device: Device) -> None:
    facts = device.facts
    assert facts.name
    assert facts.memory_bytes is not None
    assert facts.memory_bytes > 128 * MIB
    assert facts.amp_modes[0] is AmpMode.OFF
    assert all(isinstance(mode, AmpMode) for mode in facts.amp_modes)
    for spec in SPECS.values():
        reason = unavailable_reason(spec, facts)
        assert reason is None or reason.endswith(".")


def test_tensors_live_on_the_torch_device(device: Device) -> None:
    assert torch.zeros(1, device=device.torch_device).device.type == device.torch_device.type


def test_figures_are_whole_bytes_or_missing(device: Device) -> None:
    for value in device.read_memory():
        assert value is None or type(value) is int
        assert value is None or value >= 0


def test_reserved_memory_is_the_rss_only_where_a_device_says_so(device: Device) -> None:
    reserved_bytes, rss_bytes = device.read_memory().reserved_bytes, device.rss_bytes()
    assert (reserved_bytes is not None and reserved_bytes == rss_bytes) is device.reserves_rss


def test_how_memory_is_cut_up_adds_up_and_can_be_asked_from_any_thread(device: Device) -> None:
    tensor = torch.zeros(64 * MIB, dtype=torch.uint8, device=device.torch_device)
    readings: list[AllocatorReading] = []
    thread = threading.Thread(target=lambda: readings.append(device.read_allocator()))
    thread.start()
    thread.join()
    (reading,) = readings
    del tensor
    sizes = reading[: AllocatorReading._fields.index("forward_end_bytes")]
    assert all(value is None or (type(value) is int and value >= 0) for value in sizes)
    assert all(type(value) is int for value in reading.forward_end_bytes)
    free = (reading.free_bytes or 0) + (reading.split_free_bytes or 0)
    assert reading.reserved_bytes is None or free <= reading.reserved_bytes + 64 * MIB
    assert reading.largest_free_bytes is None or reading.largest_free_bytes <= free


def test_no_more_is_free_than_there_is(device: Device) -> None:
    room = device.read_memory_info()
    assert room.free_bytes is not None
    assert room.total_bytes is not None
    assert 0 <= room.free_bytes <= room.total_bytes
    assert room.total_bytes > 128 * MIB


def test_a_peak_is_no_lower_than_what_is_held_and_belongs_to_its_step(device: Device) -> None:
    device.read_memory()
    # On the CPU, other objects of the process may be freed meanwhile.
    held = torch.zeros(2 * MIB, dtype=torch.uint8, device=device.torch_device)
    busy(device)
    reading = device.read_memory()
    assert held.nbytes == 2 * MIB
    assert reading.allocated_bytes is not None
    assert reading.peak_allocated_bytes is not None
    assert reading.peak_allocated_bytes >= reading.allocated_bytes
    assert reading.peak_allocated_bytes - reading.allocated_bytes >= 63 * MIB


def test_emptying_the_cache_loses_nothing_that_is_in_use(device: Device) -> None:
    tensor = torch.arange(1000, device=device.torch_device)
    device.empty_cache()
    assert int(tensor.sum()) == 499_500


def test_a_cap_below_what_is_held_is_refused_with_one_that_works(device: Device) -> None:
    retained = torch.zeros(32 * MIB, dtype=torch.uint8, device=device.torch_device)
    with pytest.raises(SettingError, match="smallest cap that works now is") as refusal:
        device.cap_memory(1 * MIB)
    assert refusal.value.setting == "memory_cap_gib"
    smallest = float(str(refusal.value).rsplit(" ", 1)[1].rstrip("."))
    try:
        device.cap_memory(math.ceil((smallest + 0.005) * 2**30))
    finally:
        device.cap_memory(None)
    assert retained.nbytes == 32 * MIB


def test_lifting_a_cap_that_is_not_there_is_harmless(device: Device) -> None:
    device.lift_cap_for_recovery()
    device.cap_memory(None)


@pytest.mark.slow
def test_a_clock_tells_each_phase_once_the_device_is_done(device: Device) -> None:
    clock = device.clock()
    if clock is None:
        return  # a synchronous device: the CPU's clock is the truth
    tickets = []
    for _ in range(3):
        clock.begin()
        busy(device)
        clock.lap(Phase.FORWARD)
        clock.lap(Phase.BACKWARD)
        tickets.append(clock.end())
    device.synchronize()
    for number, ticket in enumerate(tickets):
        assert ticket is not None
        assert ticket.ready()
        times = ticket.resolve()
        # Timed are two in a row, at most once a second: the third one if these took that long.
        is_now_and_then = (device.facts.kind, number) == (DeviceKind.MPS, 2)
        if times is None:
            assert is_now_and_then
            continue
        assert set(times.phases_ns) == {Phase.FORWARD, Phase.BACKWARD}
        assert abs(sum(times.phases_ns.values()) - times.step_ns) < 10_000
        assert (times.gap_ns is None) == (number == 0) or is_now_and_then


def test_rss_is_that_of_a_python_process_or_missing(device: Device) -> None:
    rss = device.rss_bytes()
    assert rss is None or rss > 20 * MIB

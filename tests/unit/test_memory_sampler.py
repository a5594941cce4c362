"""Samples of where memory is: allocator, process and device in one go."""

import os

import pytest

from harness.device import memory_share
from harness.device.allocated import allocated_bytes
from harness.device.host.memory import HostMemory
from harness.device.memory_share import DeviceShare, NvmlShare, RamShare, UnknownShare
from harness.device.nvml.driver import Nvml
from harness.device.protocol import AllocatorReading
from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.records.memory import MemorySampleRow
from harness.watch.context import Progress
from harness.watch.jobs.memory import PERIOD_S, MemorySampler
from tests.train_factories import Clock, FakeJournal, a_context, a_device

UUID = FakeGpu().uuid
MIB = 1 << 20


def test_allocated_is_what_is_left_of_reserved() -> None:
    reading = AllocatorReading(100, 10, 5, 10, 3, 2, private_free_bytes=4, waiting_bytes=1)
    assert allocated_bytes(reading) == 80
    assert allocated_bytes(AllocatorReading.unknown()) is None
    assert allocated_bytes(AllocatorReading(100, 30, None, None, None, 2)) == 70


def test_a_sample_is_read_in_one_go_and_numbered() -> None:
    device, journal = a_device(), FakeJournal()
    reading = AllocatorReading(8 * MIB, 2 * MIB, MIB, MIB, 7, 3)
    device.read_allocator = lambda: reading  # type: ignore[method-assign]
    context = a_context(device, journal, Clock(tick_ns=1000), Progress(last_step=41))
    sampler = MemorySampler(context, UnknownShare())
    sampler.sample()
    sampler.sample()
    first, second = journal.of(MemorySampleRow)
    assert (first.seq, second.seq, first.step) == (0, 1, 41)
    assert (first.allocated_bytes, first.reserved_bytes, first.free_bytes) == (5 * MIB, 8 * MIB, 2 * MIB)
    assert (first.split_free_bytes, first.largest_free_bytes) == (MIB, MIB)
    assert (first.live_blocks, first.segments) == (7, 3)
    assert (first.process_bytes, first.used_bytes, first.total_bytes) == (None, None, None)
    assert sampler.pause_s() == PERIOD_S


def test_samples_that_take_long_come_more_rarely() -> None:
    sampler = MemorySampler(a_context(clock_ns=Clock(tick_ns=50_000_000)), UnknownShare())
    sampler.sample()
    assert sampler.pause_s() == 25.0


def test_peaks_are_left_to_the_training_thread() -> None:
    device = a_device()
    device.allocator.allocate(30 * MIB)
    device.allocator.free(30 * MIB)
    MemorySampler(a_context(device), UnknownShare()).sample()
    assert device.read_memory().peak_allocated_bytes == 30 * MIB


def test_on_the_cpu_the_share_is_that_of_the_ram() -> None:
    share = RamShare().read()
    assert share.process_bytes is not None
    assert share.used_bytes is not None
    assert share.total_bytes is not None
    assert 0 < share.process_bytes < share.total_bytes
    assert share.used_bytes < share.total_bytes


def test_in_a_control_group_no_less_is_used_than_by_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    total = 1 << 50
    monkeypatch.setattr(memory_share, "read_host_memory", lambda: HostMemory(total, total))
    share = RamShare().read()
    assert share.used_bytes == share.process_bytes
    monkeypatch.setattr(memory_share, "read_host_memory", lambda: HostMemory(MIB, 0))
    assert RamShare().read().used_bytes == MIB


def nvml_share(
    library: FakeNvml, reserved_bytes: int | None = None, has_machine_pids: bool = True
) -> NvmlShare:
    return NvmlShare(Nvml(library), UUID, lambda: reserved_bytes, pid=77, has_machine_pids=has_machine_pids)


def test_on_a_gpu_the_share_is_that_of_this_process() -> None:
    library = FakeNvml([FakeGpu(compute=[(12, 5 * MIB), (77, 9 * MIB)])])
    share = nvml_share(library)
    assert share.read() == DeviceShare(9 * MIB, FakeGpu().used, FakeGpu().total)
    share.close()
    share.close()
    assert library.users == 0
    assert share.read() == DeviceShare(None, None, None)


def test_a_process_that_is_not_listed_is_not_known() -> None:
    others: list[list[tuple[int, int | None]]] = [[], [(12, 5 * MIB)], [(77, None)]]
    for listed in others:
        share = nvml_share(FakeNvml([FakeGpu(compute=listed)]), reserved_bytes=MIB).read()
        assert (share.process_bytes, share.used_bytes) == (None, FakeGpu().used)


@pytest.mark.parametrize(
    ("listed", "reserved_bytes", "process_bytes"),
    [
        ([(3652628, 900 * MIB)], 500 * MIB, 900 * MIB),
        ([(12, 300 * MIB), (34, 4000 * MIB), (56, 9000 * MIB)], 3500 * MIB, 4000 * MIB),
        ([(12, 300 * MIB), (34, 4000 * MIB)], 8000 * MIB, None),
        ([(12, 300 * MIB), (34, 4000 * MIB)], None, None),
        ([(12, None), (34, 4000 * MIB)], 3500 * MIB, None),
        ([(12, 300 * MIB), (77, 4000 * MIB)], 100 * MIB, 4000 * MIB),
        ([], 100 * MIB, None),
    ],
)
def test_in_a_container_the_process_is_known_by_what_its_allocator_holds(
    listed: list[tuple[int, int | None]], reserved_bytes: int | None, process_bytes: int | None
) -> None:
    library = FakeNvml([FakeGpu(compute=listed)])
    assert nvml_share(library, reserved_bytes, has_machine_pids=False).read().process_bytes == process_bytes


def test_one_question_that_fails_does_not_take_the_other_along() -> None:
    library = FakeNvml([FakeGpu(compute=[(77, MIB)])])
    library.fail("nvmlDeviceGetMemoryInfo", "NoPermission")
    library.fail("nvmlDeviceGetMemoryInfo_v2", "NoPermission")
    assert nvml_share(library).read() == DeviceShare(MIB, None, None)


def test_a_lost_device_tells_nothing() -> None:
    library = FakeNvml()
    share = nvml_share(library)
    library.fail("nvmlDeviceGetMemoryInfo_v2", "GpuIsLost")
    assert share.read() == DeviceShare(None, None, None)
    assert NvmlShare(Nvml(FakeNvml()), "GPU-unknown", lambda: None).read() == DeviceShare(None, None, None)


def test_the_process_asked_about_is_this_one() -> None:
    library = FakeNvml([FakeGpu(compute=[(os.getpid(), 3 * MIB)])])
    assert NvmlShare(Nvml(library), UUID, lambda: None).read().process_bytes == 3 * MIB

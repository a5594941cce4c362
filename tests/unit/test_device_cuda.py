"""The CUDA device's own decisions, with torch's allocator played by the fake one."""

import pytest
import torch

from harness.device.cuda.allocator import has_statistics
from harness.device.cuda.cublas import workspace_bytes
from harness.device.cuda.device import CudaDevice
from harness.device.protocol import AllocatorReading
from harness.device.testing.device import FAKE_FACTS, FakeAllocator
from harness.errors import SettingError
from harness.records.run import DeviceFacts
from harness.watch.jobs.leaks import read_limits

MIB = 1 << 20


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    allocator = FakeAllocator(8 << 30)

    def set_fraction(fraction: float, device: int) -> None:
        allocator.limit_bytes = int(fraction * allocator.total_bytes)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, allocator.total_bytes))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: allocator.reserved_bytes)
    monkeypatch.setattr(torch.cuda, "empty_cache", allocator.empty_cache)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", set_fraction)
    monkeypatch.setattr(
        torch.cuda,
        "get_per_process_memory_fraction",
        lambda device: allocator.limit_bytes / allocator.total_bytes,
        raising=False,
    )
    return allocator


def test_a_cap_limits_what_is_reserved_to_the_byte(allocator: FakeAllocator) -> None:
    device = CudaDevice(FAKE_FACTS)
    device.cap_memory(512 * MIB)
    assert allocator.limit_bytes == 512 * MIB
    with pytest.raises(torch.OutOfMemoryError):
        allocator.allocate(600 * MIB)


def test_recovery_lifts_the_cap_until_it_is_set_again(allocator: FakeAllocator) -> None:
    device = CudaDevice(FAKE_FACTS)
    device.cap_memory(512 * MIB)
    device.lift_cap_for_recovery()
    assert allocator.limit_bytes == allocator.total_bytes
    device.cap_memory(512 * MIB)
    assert allocator.limit_bytes == 512 * MIB


@pytest.mark.parametrize("cap_bytes", [None, 8 << 30, 100 << 30])
def test_no_cap_and_one_beyond_the_card_are_the_same(allocator: FakeAllocator, cap_bytes: int | None) -> None:
    device = CudaDevice(FAKE_FACTS)
    device.cap_memory(512 * MIB)
    device.cap_memory(cap_bytes)
    assert allocator.limit_bytes == allocator.total_bytes


def test_only_a_cache_in_the_way_is_emptied(allocator: FakeAllocator) -> None:
    device = CudaDevice(FAKE_FACTS)
    allocator.allocate(200 * MIB)
    allocator.free(200 * MIB)
    device.cap_memory(400 * MIB)
    assert allocator.reserved_bytes == 200 * MIB
    device.cap_memory(100 * MIB)
    assert allocator.reserved_bytes == 0


def test_a_cap_below_what_is_in_use_changes_nothing(allocator: FakeAllocator) -> None:
    device = CudaDevice(FAKE_FACTS)
    allocator.allocate(200 * MIB)
    with pytest.raises(SettingError, match=r"0\.196 GiB, a cap must leave 20\.0 MiB .* is 0\.215"):
        device.cap_memory(100 * MIB)
    assert allocator.limit_bytes == allocator.total_bytes


def test_a_process_that_was_never_capped_keeps_the_limit_of_its_own(allocator: FakeAllocator) -> None:
    """As one from PYTORCH_ALLOC_CONF=per_process_memory_fraction:0.5."""
    allocator.limit_bytes = 4 << 30
    device = CudaDevice(FAKE_FACTS)
    device.cap_memory(None)
    device.cap_memory(100 << 30)
    device.lift_cap_for_recovery()
    assert allocator.limit_bytes == 4 << 30


def test_lifting_a_cap_restores_the_limit_of_the_script(allocator: FakeAllocator) -> None:
    """As one from torch.cuda.set_per_process_memory_fraction(0.5), before the first cap or between two."""
    device = CudaDevice(FAKE_FACTS)
    for own_bytes in (4 << 30, 6 << 30):
        allocator.limit_bytes = own_bytes
        device.cap_memory(512 * MIB)
        device.cap_memory(1 << 30)
        assert allocator.limit_bytes == 1 << 30
        device.cap_memory(None)
        device.lift_cap_for_recovery()
        assert allocator.limit_bytes == own_bytes


def test_a_cap_raises_no_lower_limit_of_the_script(allocator: FakeAllocator) -> None:
    allocator.limit_bytes = 2 << 30
    device = CudaDevice(FAKE_FACTS)
    device.cap_memory(4 << 30)
    assert allocator.limit_bytes == 2 << 30
    assert read_limits(device, 4 << 30).device_bytes == 2 << 30


def test_a_limit_that_the_script_sets_under_a_cap_stays_when_the_cap_is_lifted(
    allocator: FakeAllocator,
) -> None:
    device = CudaDevice(FAKE_FACTS)
    device.cap_memory(512 * MIB)
    allocator.limit_bytes = 3 << 30
    device.cap_memory(None)
    assert allocator.limit_bytes == 3 << 30


def test_no_limit_of_cuda_malloc_async_is_a_share_of_one(
    allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It divides the largest integer by the total, and torch.cuda raises ValueError for a share above 1."""
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 2.0**64 / (8 << 30))
    device = CudaDevice(FAKE_FACTS)
    device.cap_memory(512 * MIB)
    device.cap_memory(None)
    assert allocator.limit_bytes == allocator.total_bytes


def test_a_torch_that_cannot_read_its_limit_lifts_a_cap_to_the_whole_card(
    allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.cuda, "get_per_process_memory_fraction")
    device = CudaDevice(FAKE_FACTS)
    device.cap_memory(512 * MIB)
    device.cap_memory(None)
    assert allocator.limit_bytes == allocator.total_bytes


def test_a_limit_that_a_script_sets_is_the_limit_of_its_leaks(allocator: FakeAllocator) -> None:
    device = CudaDevice(FAKE_FACTS)
    assert read_limits(device, None).device_bytes == FAKE_FACTS.memory_bytes
    allocator.limit_bytes = 2 << 30
    assert device.limit_bytes() == (FAKE_FACTS.memory_bytes or 0) // 4
    assert read_limits(device, None).device_bytes == device.limit_bytes()
    assert read_limits(device, 512 * MIB).device_bytes == 512 * MIB


def test_a_torch_that_cannot_tell_its_limit_has_none(
    allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.cuda, "get_per_process_memory_fraction")
    assert CudaDevice(FAKE_FACTS).limit_bytes() is None


@pytest.fixture
def other_allocator(monkeypatch: pytest.MonkeyPatch) -> str:
    """Raises what such an allocator does where it is called."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    for name in ("memory_stats_as_nested_dict", "reset_peak_memory_stats", "memory_snapshot"):
        monkeypatch.setattr(torch.cuda, name, fail)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")
    return "pluggable"


@pytest.mark.usefixtures("other_allocator")
def test_an_allocator_without_statistics_has_no_figures() -> None:
    device = CudaDevice(FAKE_FACTS)
    device.begin_memory()
    assert set(device.read_memory()) == {None}
    assert device.read_allocator() == AllocatorReading.unknown()
    assert device.limit_bytes() is None


@pytest.mark.parametrize("name", ["PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"])
def test_without_caching_no_figure_is_zero(allocator: FakeAllocator, name: str) -> None:
    """torch's counters stay at 0: tensors are from the driver. It ignores values other than 1."""
    assert [has_statistics({name: value}) for value in ("0", "yes", "1")] == [True, True, False]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: pytest.fail("read"))
        patch.setattr(torch.cuda, "memory_snapshot", lambda: pytest.fail("read"))
        patch.setattr(torch.cuda, "init", lambda: None)
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        patch.setenv(name, "1")
        device = CudaDevice(FAKE_FACTS)
        device.begin_memory()
        assert set(device.read_memory()) == {None}
        assert device.read_allocator() == AllocatorReading.unknown()
        with pytest.raises(SettingError, match="no effect on this process's allocator"):
            device.cap_memory(512 * MIB)
    assert allocator.limit_bytes == allocator.total_bytes


def test_counters_that_cuda_malloc_async_lacks_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch returns 0 for them (`torch.cuda.memory_stats`)."""
    size = {"all": {"current": 4 * MIB, "peak": 6 * MIB}}
    none = {"all": {"current": 0, "peak": 0}}
    stats = {"allocated_bytes": size, "reserved_bytes": size, "active_bytes": size}
    stats |= {"inactive_split_bytes": none, "num_alloc_retries": 0, "num_ooms": 0}  # type: ignore[dict-item]
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    device = CudaDevice(FAKE_FACTS)
    device.begin_memory()
    reading = device.read_memory()
    assert (reading.allocated_bytes, reading.peak_reserved_bytes) == (4 * MIB, 6 * MIB)
    assert (reading.inactive_split_bytes, reading.alloc_retries, reading.ooms) == (None, None, None)


def test_another_gpu_of_the_process_is_read_and_its_peaks_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def read_statistics(device: int) -> dict[str, object]:
        read.append(device)
        return {}

    def facts_of(ordinal: int) -> DeviceFacts:
        return FAKE_FACTS._replace(ordinal=ordinal)

    monkeypatch.setattr("harness.device.cuda.device.cuda_facts", facts_of)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", read_statistics)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: pytest.fail("reset"))
    other = CudaDevice(FAKE_FACTS).sibling(1)
    other.read_memory()
    assert (other.facts.torch_name, read) == ("cuda:1", [1])


@pytest.mark.parametrize(
    ("capability", "config", "expected"),
    [
        ((8, 6), "", 8_519_680),
        ((9, 0), "", 32 * MIB),
        ((12, 0), "", 32 * MIB),
        (None, "", 8_519_680),
        ((9, 0), ":4096:8", 32 * MIB),
        ((8, 0), ":16:8", 128 << 10),
        ((9, 0), ":4096:2:16:8", 8_519_680),
        ((9, 0), "none of its own", 32 * MIB),
    ],
)
def test_the_size_of_a_workspace_of_cublas(
    capability: tuple[int, int] | None, config: str, expected: int
) -> None:
    assert workspace_bytes(capability, {"CUBLAS_WORKSPACE_CONFIG": config}) == expected

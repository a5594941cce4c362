"""Peaks in the process of a script, whose peak counters they are."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.device.cuda.device import CudaDevice
from harness.device.protocol import Device
from harness.device.testing.accelerators import FAKE_XPU_FACTS, FakeXpu
from harness.device.testing.device import FAKE_FACTS, FakeAllocator, FakeQueue
from harness.device.xpu.device import XpuDevice

MIB = 1 << 20
MAKERS = pytest.mark.parametrize("make", [CudaDevice, XpuDevice])


@pytest.fixture
def allocator() -> FakeAllocator:
    return FakeAllocator(8 << 30)


@pytest.fixture
def library(allocator: FakeAllocator, monkeypatch: pytest.MonkeyPatch) -> FakeXpu:
    library = FakeXpu(allocator, FakeQueue())

    def nested_stats(device: int | None = None) -> dict[str, Any]:
        return library.memory_stats_as_nested_dict(device) | {
            "inactive_split_bytes": {"all": {"current": 0}},
            "num_alloc_retries": 0,
            "num_ooms": 0,
        }

    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", nested_stats)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", library.reset_peak_memory_stats)
    return library


def open_as_guest(make: Callable[..., Device], library: FakeXpu) -> Device:
    if make is CudaDevice:
        return make(FAKE_FACTS, owns_peaks=False)
    return make(FAKE_XPU_FACTS, library, torch.device("cpu"), owns_peaks=False)


def use(allocator: FakeAllocator, size_bytes: int) -> None:
    allocator.allocate(size_bytes)
    allocator.free(size_bytes)


@MAKERS
def test_readings_leave_the_scripts_peak_as_it_is(
    make: Callable[..., Device], allocator: FakeAllocator, library: FakeXpu
) -> None:
    device = open_as_guest(make, library)
    use(allocator, 64 * MIB)
    device.begin_memory()
    for _ in range(3):
        device.read_memory()
    assert allocator.peak_allocated_bytes == 64 * MIB


@MAKERS
def test_a_step_has_a_peak_only_where_it_raised_the_counter(
    make: Callable[..., Device], allocator: FakeAllocator, library: FakeXpu
) -> None:
    device, peaks = open_as_guest(make, library), []
    for mib in (64, 64, 80, 48):
        use(allocator, mib * MIB)
        peaks.append(device.read_memory().peak_allocated_bytes)
    assert peaks == [None, None, 80 * MIB, None]


@MAKERS
def test_after_a_reset_by_the_script_peaks_count_from_there(
    make: Callable[..., Device], allocator: FakeAllocator, library: FakeXpu
) -> None:
    device, peaks = open_as_guest(make, library), []
    use(allocator, 64 * MIB)
    device.read_memory()
    library.reset_peak_memory_stats()
    for mib in (16, 24, 24):
        use(allocator, mib * MIB)
        peaks.append(device.read_memory().peak_allocated_bytes)
    assert peaks == [None, 24 * MIB, None]

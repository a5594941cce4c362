"""The numbers in the texts of out-of-memory errors."""

import numpy as np
import pytest

from harness.analysis.oom.error import is_from_worker, is_of_host, read_error, tensor_bytes
from harness.records.run import DeviceKind
from tests.oom_factories import GIB, MIB

CUDA_TEXT = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which "
    "1.23 GiB is free. Process 1234 has 20.00 GiB memory in use. Process 7 has 512.00 MiB memory in use. "
    "Including non-PyTorch memory, this process has 57.00 GiB memory in use. Of the allocated memory "
    "56.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)


def test_the_numbers_in_cudas_error_are_read() -> None:
    result = read_error(CUDA_TEXT)
    assert result.requested_bytes == int(2.5 * GIB)
    assert result.total_bytes == int(79.11 * GIB)
    assert result.free_bytes == int(1.23 * GIB)
    assert result.process_bytes == 57 * GIB
    assert result.others_bytes == 20 * GIB + 512 * MIB


@pytest.mark.parametrize(
    ("text", "requested_bytes"),
    [
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 402653184 bytes. Er", 402653184),
        ("Unable to allocate 1.50 GiB for an array with shape (3, 4) and data type float32", int(1.5 * GIB)),
        # numpy's own texts: three digits end with the point.
        ("Unable to allocate 512. KiB for an array with shape (256, 256) and data type float64", 512 * 2**10),
        ("Unable to allocate 496. MiB for an array with shape (65011712,) and data type int64", 496 * MIB),
        ("Unable to allocate 969. GiB for an array with shape (130056978432,) and data", 969 * GIB),
        ("Unable to allocate 1.46 TiB for an array with shape (447600, 447600) and", int(1.46 * 2**40)),
        ("Invalid buffer size: 24.00 GiB", 24 * GIB),
        ("Invalid buffer size: 20.25 GB", int(20.25 * GIB)),
        ("unable to mmap 32789894024 bytes from file </m.pt>: Cannot allocate memory (12)", 32_789_894_024),
        ("alloc fail type TemporaryMemoryBuffer dev 0 space Device size 1610612736 bytes (cuda", 1610612736),
        ("failed: Failed to cudaMalloc 536870912 bytes on device 1 (error 2 out of memory\nOut", 536870912),
        ("failed to cudaMalloc 47064032 bytes (error 2 out of memory)", 47064032),
        ("CUDA error: out of memory", None),
        (
            "MPS backend out of memory (MPS allocated: 1 GiB). Tried to allocate 3.50 GiB on priva",
            int(3.5 * GIB),
        ),
        ("MPS backend out of memory (MPS allocated: 3.11 GB). Tried to allocate 720.00 MB on", 720 * MIB),
        ("", None),
    ],
)
def test_the_size_asked_for_is_read_where_it_is_said(text: str, requested_bytes: int | None) -> None:
    assert read_error(text) == (requested_bytes, None, None, None, None)


@pytest.mark.parametrize(
    ("device", "error_bytes", "between"),
    [
        (DeviceKind.CUDA, 2 * MIB, (1, MIB)),
        (DeviceKind.CUDA, 20 * MIB, (MIB, 10 * MIB)),
        (DeviceKind.CUDA, 512 * MIB, (510 * MIB, 512 * MIB)),
        (DeviceKind.XPU, 20 * MIB, (MIB, 10 * MIB)),
        (DeviceKind.MPS, 20 * MIB, (20 * MIB, 20 * MIB)),
        (DeviceKind.CPU, 20 * MIB, (20 * MIB, 20 * MIB)),
    ],
)
def test_an_error_names_a_segment_on_cuda_and_a_tensor_on_the_cpu(
    device: DeviceKind, error_bytes: int, between: tuple[int, int]
) -> None:
    assert tensor_bytes(error_bytes, device) == between


def test_the_numbers_in_intels_error_are_read() -> None:
    result = read_error(
        "XPU out of memory. Tried to allocate 34.00 MiB. GPU 0 has a total capacity of 11.93 GiB of which "
        "34.20 MiB is free. Of the allocated memory 10.80 GiB is allocated by PyTorch."
    )
    assert (result.requested_bytes, result.total_bytes) == (34 * MIB, int(11.93 * GIB))
    assert result.free_bytes == int(34.2 * MIB)


@pytest.mark.parametrize("size_bytes", [512 * 2**40, 1_023 * 2**40, 3 * 2**50])
def test_numpys_error_is_read_for_arrays_larger_than_any_address_space(size_bytes: int) -> None:
    with pytest.raises(MemoryError) as caught:
        np.empty(size_bytes, dtype=np.int8)
    assert read_error(str(caught.value)).requested_bytes == size_bytes


def test_an_error_out_of_a_worker_is_known_by_its_text() -> None:
    assert is_from_worker("Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback")
    assert not is_from_worker(CUDA_TEXT)


def test_a_process_or_mapping_that_the_system_refuses_is_memory_of_the_host() -> None:
    assert is_of_host("[Errno 12] Cannot allocate memory")
    assert not is_of_host("[Errno 28] No space left on device")

"""Test what counts as running out of memory."""

from typing import Any

import pytest
import torch

from harness.watch.oom.errors import is_ambiguous, is_out_of_memory


def an_accelerator_error(code: int) -> RuntimeError:
    error: Any = RuntimeError("CUDA error")
    error.error_code = code
    return error  # type: ignore[no-any-return]


AMBIGUOUS = (
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("FIND was unable to find an engine to execute this computation after trying 8 plans."),
    RuntimeError("Unable to find a valid cuDNN algorithm to run convolution"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
        ),
        RuntimeError("Caught RuntimeError in DataLoader worker process 0.\nCUDA out of memory. Tried to"),
        an_accelerator_error(2),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("std::bad_alloc"),
        torch.OutOfMemoryError("HIP out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
        RuntimeError("MPS backend out of memory (MPS allocated: 7.80 GiB, other allocations: 6.94 GiB"),
        RuntimeError("Invalid buffer size: 12.00 GB"),
        RuntimeError(
            'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1016, please '
            "report a bug to PyTorch."
        ),
        RuntimeError(
            "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at "
            '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":983, please report a bug to PyTorch.'
        ),
        RuntimeError("CUDA driver error: out of memory"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("Last error:\nCuda failure 2 'out of memory'"),
    ],
)
def test_these_are_out_of_memory(error: BaseException) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("CUDA out of memory"),
        an_accelerator_error(700),
        OSError(12, "Cannot allocate memory"),
        KeyboardInterrupt(),
        RuntimeError('false INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1016, please'),
        RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/PeerToPeerAccess.cpp":80'),
        RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376."),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        *AMBIGUOUS,
    ],
)
def test_these_are_not(error: BaseException) -> None:
    assert not is_out_of_memory(error)


@pytest.mark.parametrize("error", AMBIGUOUS)
def test_these_may_be(error: BaseException) -> None:
    assert is_ambiguous(error)


def test_an_error_that_is_certain_needs_no_counters() -> None:
    assert not is_ambiguous(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert not is_ambiguous(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_ambiguous(ValueError("Unable to find a valid cuDNN algorithm to run convolution"))


def test_a_tensor_too_large_for_any_machine_is_one_for_real() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**52)
    assert is_out_of_memory(caught.value)

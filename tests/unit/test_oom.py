"""Test what counts as running out of memory."""

import os
from pathlib import Path
from tempfile import NamedTemporaryFile
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
    RuntimeError("CUDA error: HIPBLAS_STATUS_NOT_INITIALIZED when calling `hipblasCreate(handle)`"),
    # YanWenKun/ComfyUI-Docker#140: of attention, on a shape that cuDNN does not support.
    RuntimeError("cuDNN Frontend error: [cudnn_frontend] Error: No valid execution plans built."),
    # intel/torch-xpu-ops#2445, pytorch/pytorch#190972 and Intel's answer for memory that ran out.
    RuntimeError("UR backend failed. UR backend returns:40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"),
    RuntimeError("level_zero backend failed with error: 40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)"),
    RuntimeError(
        "Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES) -5 (PI_ERROR_OUT_OF_RESOURCES)"
    ),
)


# facebookresearch/faiss#2155, #2020 and #1031.
FAISS = (
    "Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type TemporaryMemoryBuffer dev 0 "
    "space Device stream 0x56211a0ab660 size 1610612736 bytes (cudaMalloc error out of memory [2])",
    "Error: 'err == cudaSuccess' failed: Failed to cudaMalloc 536870912 bytes on device 1 (error 2 out of "
    "memory\nOutstanding allocations:",
    "Error: 'err == cudaSuccess' failed: failed to cudaMalloc 47064032 bytes (error 2 out of memory)",
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
        RuntimeError("Triton Error [HIP]:  Code: 2, Messsage: out of memory"),
        RuntimeError("Triton Error [HIP]: Code: 2, Message: out of memory"),
        RuntimeError("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
        RuntimeError("level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)"),
        # ROCm/TheRock#1708
        RuntimeError("CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`"),
        RuntimeError("miopenStatusAllocFailed"),
        RuntimeError("unable to mmap 32789894024 bytes from file </m.pt>: Cannot allocate memory (12)"),
        RuntimeError(
            "unable to allocate shared memory(shm) for file </torch_4411_2_1>: Cannot allocate memory (12)"
        ),
        RuntimeError("Last error:\nCuda failure 2 'out of memory'"),
        RuntimeError(
            "ncclUnhandledCudaError: Call to CUDA function failed.\nFailed to CUDA calloc async 608 bytes"
        ),
        # The format of `cuda_error` in CCCL, with the prefixes of Thrust and CUB.
        RuntimeError("parallel_for failed: cudaErrorMemoryAllocation: out of memory"),
        RuntimeError("radix_sort: failed on 1st step: cudaErrorMemoryAllocation: out of memory"),
        # The format of Transformer Engine's NVTE_CHECK_CUDA.
        RuntimeError("/TransformerEngine/common/util/rtc.cpp:42 in function load: CUDA Error: out of memory"),
        RuntimeError("hipErrorOutOfMemory: out of memory"),
        # ggml-org/llama.cpp#22673; MLX words it likewise.
        RuntimeError("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"),
        # A loader that cannot fork its workers: pytorch/pytorch#4387, and a mapping in a worker.
        OSError(12, "Cannot allocate memory"),
        OSError(
            "Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
            "OSError: [Errno 12] Cannot allocate memory"
        ),
        # NumPy's error in a worker, which torch cannot make again: its constructor takes no text.
        RuntimeError(
            "Caught MemoryError in DataLoader worker process 0.\nOriginal Traceback:\n"
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 PiB for an array"
        ),
        # NVlabs/tiny-cuda-nn#278
        RuntimeError(
            "/tiny-cuda-nn/include/tiny-cuda-nn/gpu_memory.h:584 cuMemCreate(&m_handles.back(), "
            "n_bytes_to_allocate, &prop, 0) failed with error CUDA_ERROR_OUT_OF_MEMORY"
        ),
        # open-mmlab/mmdetection3d#80, tianweiy/CenterPoint#301
        RuntimeError("mmdet3d/ops/spconv/src/indice_cuda.cu 124\ncuda execution failed with error 2"),
        *map(RuntimeError, FAISS),
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
        OSError(28, "No space left on device"),
        RuntimeError("spconv/src/spconv/indice.cu 125\ncuda execution failed with error 209"),
        RuntimeError("failed to cudaMalloc 1610612736 bytes (error 3 initialization error)"),
        KeyboardInterrupt(),
        RuntimeError('false INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1016, please'),
        RuntimeError('NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/PeerToPeerAccess.cpp":80'),
        RuntimeError("out of resource: shared memory, Required: 131072, Hardware limit: 101376."),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("Caught KeyError in DataLoader worker process 0.\nCaught MemoryError in another one."),
        RuntimeError(
            "parallel_for failed: cudaErrorIllegalAddress: an illegal memory access was encountered"
        ),
        RuntimeError("Triton Error [HIP]:  Code: 98, Messsage: invalid device function"),
        RuntimeError("level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
        RuntimeError("miopenStatusInternalError"),
        RuntimeError("CUDA error: HIPBLAS_STATUS_INTERNAL_ERROR when calling `hipblasCreate(handle)`"),
        RuntimeError("unable to mmap 4831838208 bytes from file </m.pt>: Permission denied (13)"),
        RuntimeError("unable to write to file </home/me/torch_1.bin>: No space left on device (28)"),
        RuntimeError(
            "unable to open shared memory object </torch_4411> in read-write mode: Too many open files (24)"
        ),
        RuntimeError("DataLoader worker (pid 4242) is killed by signal: Segmentation fault. "),
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


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="other file systems have no files this large")
def test_a_file_too_large_to_map_is_one_for_real() -> None:
    size_bytes = 2**50  # Sparse.
    with NamedTemporaryFile(dir="/dev/shm") as file:
        os.truncate(file.name, size_bytes)
        with pytest.raises(RuntimeError, match="unable to mmap") as caught:
            torch.from_file(file.name, shared=False, size=size_bytes, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)

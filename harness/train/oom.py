"""Recognises out-of-memory errors, on the GPU and on the CPU."""

import torch

_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
)
"""What torch's own allocators, the driver, the libraries that allocate beside them, and C++ say."""

_OUT_OF_MEMORY_CODE = 2
"""cudaErrorMemoryAllocation, as `torch.AcceleratorError.error_code` (torch 2.8 and newer)."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory ran out.

    torch raises `OutOfMemoryError` on the GPU, `AcceleratorError` when a CUDA call fails (torch 2.8 and
    newer), and a plain RuntimeError from the CPU allocator and from libraries; Python itself raises
    MemoryError. A loader worker that runs out of memory re-raises one of these with its text kept.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if getattr(error, "error_code", None) == _OUT_OF_MEMORY_CODE:
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS)

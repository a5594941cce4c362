"""Recognises out-of-memory errors, on the GPU and on the CPU."""

import torch

_CPU_ALLOCATOR = "DefaultCPUAllocator"
_OUT_OF_MEMORY_CODE = 2
"""cudaErrorMemoryAllocation, as `torch.AcceleratorError.error_code` (torch 2.8 and newer)."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that memory ran out.

    torch raises `OutOfMemoryError` on the GPU, a plain RuntimeError from the CPU allocator, and
    `AcceleratorError` when a library call fails; Python itself raises MemoryError. A loader worker that runs
    out of memory re-raises one of these with its text kept.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if getattr(error, "error_code", None) == _OUT_OF_MEMORY_CODE:
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        (_CPU_ALLOCATOR in text and "can't allocate memory" in text) or "CUDA out of memory" in text
    )

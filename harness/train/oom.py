"""Recognises out-of-memory errors, on the GPU and on the CPU, and lets go of what they hold."""

import traceback
from collections.abc import Callable
from typing import TypeVar

import torch

from harness.errors import StepscopeError

Result = TypeVar("Result")

_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "HIP out of memory",
    "HIP error: out of memory",
    "XPU out of memory",
    "MPS backend out of memory",
    "Invalid buffer size",
    "UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
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


def let_go(error: BaseException) -> None:
    """Let go of everything that the frames of `error`, and of what led to it, still hold: a failed step's
    activations live as long as they do."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            traceback.clear_frames(link.__traceback__)
            waiting += [link.__cause__, link.__context__]


def attempt(act: Callable[[], Result]) -> Result | None:
    """What `act` returns; None when the device answers no more or there is no memory for it: after an
    out-of-memory error the report is written and the last word said all the same."""
    try:
        return act()
    except (RuntimeError, MemoryError) as error:
        traceback.print_exception(error)
        return None


class NoRecoveryError(StepscopeError):
    """Memory ran out in `step` and the run ends; the message says why, `detail` is a JSON object."""

    def __init__(self, message: str, step: int, detail: str) -> None:
        super().__init__(message)
        self.step = step
        self.detail = detail

"""Recognition of out-of-memory errors on GPU and CPU, and release of the memory that they keep alive."""

import errno
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from opcode import opmap
from typing import TypeVar

import torch

from harness.analysis.oom.error import excerpt, is_of_shared_memory
from harness.errors import StepscopeError, text_of
from harness.notices import print_notice, print_traceback
from harness.tracebacks import passes_on

Result = TypeVar("Result")

_INCOMPLETE = "There was no memory for a part of the report on the out-of-memory error."

# The words of CUDA and HIP for the code, and of most libraries, as a statement of its own: behind a colon, a
# bracket, a quote, "error", a code or the name of a device, and not in front of a noun, as in "out of memory
# slots".
_OUT_OF_MEMORY = re.compile(
    r"(?:\A|[:;.()\['\"`=>\n][\s'\"(]{0,4}|\b(?:\w*error|fail\w*|code|status|result)\W{0,4}(?:\d{1,4}\W{1,4})?"
    r"|\b(?:cuda|hip|[a-z]pu|backend|device|host|cuda\w*allocation)[^a-z]{0,20})"
    r"out ?of ?memory(?! +(?!(?:error|on|at|in|while|when|during|for|by|with|allocating|trying)\b)[a-z])",
    re.IGNORECASE,
)

# Texts of torch's own allocators, of the drivers, of the libraries that allocate on their own, and of C++.
_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    # Of Intel's extension, for a request above the largest buffer.
    "Current platform can NOT allocate memory block",
    "Invalid buffer size",
    "std::bad_alloc",
    # Metal's, of a command buffer: "Insufficient Memory (00000008:kIOGPU…)".
    "kIOGPUCommandBufferCallbackErrorOutOfMemory",
    # DALI's, of the GPU (`CUDABadAlloc` in its include/dali/core/cuda_error.h).
    "CUDA allocation failed",
    # TensorFlow's.
    "OOM when allocating tensor",
)
_PATTERNS = (
    _OUT_OF_MEMORY,
    # torch's of any device, as "NPU", "MPS backend": only its allocators write this.
    re.compile(r"\bout of memory\b.{0,200}?\. ?Tried to allocate\b"),
    # The names of codes, of CUDA's driver, OpenCL, Vulkan, Level Zero, Intel's runtime (PI before oneAPI
    # 2025), nvJPEG and the BLAS libraries. cuDNN 9 has CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED.
    re.compile(r"[A-Z]_(?:ALLOC(?:ATION|ATOR)?_FAIL(?:ED|URE)|OUT_OF_(?:DEVICE_|HOST_)?MEMORY)\b"),
    # Those of CUDA's and HIP's runtimes, CUTLASS and MIOpen.
    re.compile(r"(?:Error(?:OutOfMemory|MemoryAllocation)|StatusAllocFailed)\b"),
    # torch has the words for the codes of cuBLAS (torch 1) and of cuSPARSE (`TORCH_CUDASPARSE_CHECK` in
    # aten/src/ATen/cuda/Exceptions.h).
    re.compile(
        r"\b(?:cu|hip)blas runtime error : resource allocation failed"
        r"|resource allocation failed when calling `(?:cu|hip)sparse"
    ),
    # torch's, of an error in a worker that cannot be made of a text alone, as NumPy's (torch/_utils.py).
    re.compile(r"\ACaught \w*MemoryError in "),
    # ENOMEM, as C's and Rust's libraries spell it (mmap in aten/src/ATen/MapAllocator.cpp, safetensors), and
    # its number, as torch 1 and Paddle print it.
    re.compile(r": Cannot allocate memory(?: \((?:os error )?12\)|\s*$)", re.MULTILINE),
    re.compile(r"posix_memalign\([^()]{1,100}\)(?: == 0\. |:)12\b"),
    # The number of cudaErrorMemoryAllocation: spconv, mmdetection3d's copy of it (tensorview.h), nvdiffrast.
    re.compile(r"\bcuda (?:execution )?failed with error 2\b|\b[Cc]uda error: 2\["),
    # pybind11's, of an object of Python, as the bytes that torch.save passes on.
    re.compile(r"\ACould not allocate \w+ object!"),
    # NCCL's last error after a failed cudaMalloc (`ncclCudaCalloc` in its src/include/alloc.h); it says the
    # same on a GPU that has failed before in any way.
    re.compile(r"Failed to CUDA calloc (?:async )?\d+ bytes"),
    # XLA's and TensorFlow's status is also that of gRPC for a message that is too large.
    re.compile(
        r"\bRESOURCE[_ ]?EXHAUSTED.{0,400}?(?:out of memory|to (?:allocate|reserve))",
        re.IGNORECASE | re.DOTALL,
    ),
    # ONNX Runtime (onnxruntime/core/framework/bfc_arena.cc).
    re.compile(r"Failed to allocate memory for requested buffer of size \d+"),
    # torch on Windows and before 1.0, DirectML.
    re.compile(r"\bnot enough (?:(?:gpu|video|device|host|system) ){0,2}memory\b", re.IGNORECASE),
    # A request that was refused, with its size: Warp, Paddle, DirectML.
    re.compile(
        r"\b(?:(?:failed|unable) to|could not|cannot) allocate (?:\w+ (?:of|with) )?"
        r"[0-9][0-9.,]{0,25} ?(?:bytes|[KMGT]i?B)\b",
        re.IGNORECASE,
    ),
    # TensorRT.
    re.compile(r"Requested amount of (?:GPU )?memory \(\d+ bytes\) could not be allocated"),
    # Intel's Gaudi.
    re.compile(r"\bPT_DEVMEM Allocation failed for size"),
    # OpenCV (modules/core/src/alloc.cpp).
    re.compile(r"in function '?(?:cv::)?OutOfMemoryError\b"),
    # Raised while the message of an out-of-memory error is put together, where NVML lists no processes (MIG,
    # containers): `reportProcessMemoryInfo` in c10/cuda/CUDACachingAllocator.cpp, called for nothing else.
    re.compile(
        r"NVML_SUCCESS == .{1,200}? INTERNAL ASSERT FAILED at \S{0,400}CUDACachingAllocator\.cpp", re.DOTALL
    ),
)

# cuDNN's plans swallow the error of a workspace that did not fit, the handle of a library or a plan of cuFFT
# cannot be made on a full card, and cuSPARSE and Intel's runtime are out of resources also where a kernel
# needs more than there is of registers, local memory or buffers: all say the same when something else is
# wrong.
_AMBIGUOUS = re.compile(
    r"\b(?:GET|FIND) was unable to find an engine to execute this computation"
    r"|Unable to find a valid cuDNN algorithm"
    r"|No valid execution plans built"  # cuDNN's frontend, of attention.
    r"|\b(?:CU|HIP)(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_NOT_INITIALIZED\b"
    r"|SOLVER_STATUS_INTERNAL_ERROR, when calling `(?:cu|hip)solver\w*Create\("
    r"|(?:insufficient resources|library not initialized) when calling `(?:cu|hip)sparse"
    r"|\bCUFFT_INTERNAL_ERROR\b"
    r"|\b(?:UR_RESULT|PI)_ERROR_OUT_OF_RESOURCES\b"
)

# ENOMEM of a fork or a mapping. A loader worker, and Rust's libraries (Polars), pass on the text of an error
# without its number.
_NO_MEMORY_OF_SYSTEM = (f"[Errno {errno.ENOMEM}]", f"(os error {errno.ENOMEM})")

_RAISE = opmap["RAISE_VARARGS"]
# The modules of `exit`, and of what stands in for `sys.exit`.
_EXIT_MODULES = ("_sitebuiltins", "stepscope.process")

# Errors of these packages' own classes, other than RuntimeError, may quote errors of other processes. Those
# of all other packages are read like RuntimeError.
_QUOTING_PACKAGES = sys.stdlib_module_names | {"torch", "__main__"}

# cudaErrorMemoryAllocation, as `torch.AcceleratorError.error_code` (torch 2.8 and newer).
_OUT_OF_MEMORY_CODE = 2


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error`, and the errors that it was raised from (`raise … from …`) or has taken the place of, the
    newest first."""
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        yield link
        link = link.__cause__ or _replaced_by(link)


def _replaced_by(error: BaseException) -> BaseException | None:
    """Return the error that was on its way through a `finally` or `with` where `error` was raised, as by an
    archive that cannot be completed, or that of a handler that raised `error` itself, or exited with a code
    other than 0. What else an `except` calls is no consequence: it may be the next attempt, which has failed
    for another reason. An error that hides the earlier one (`from None`) has to quote it."""
    context, place = error.__context__, error.__traceback__
    if context is None or (error.__suppress_context__ and not _quotes(error, context)):
        return None
    if (is_exit := isinstance(error, SystemExit)) and not error.code:
        return None
    frames = {frame for frame, _ in traceback.walk_tb(context.__traceback__)}
    while place is not None:
        code, position, callee = place.tb_frame.f_code, place.tb_lasti, place.tb_next
        if is_exit:
            is_own = callee is None or callee.tb_frame.f_globals.get("__name__") in _EXIT_MODULES
        else:
            is_own = callee is None and code.co_code[position] == _RAISE
        if place.tb_frame in frames and (is_own or passes_on(code, position)):
            return context
        place = callee
    return None


def _quotes(error: BaseException, context: BaseException) -> bool:
    text = text_of(context)
    return bool(text) and text in text_of(error)


def memory_error_of(error: BaseException) -> BaseException | None:
    """Return the error by which memory ran out: `error`, or one of those `with_causes` yields, the newest
    that quotes no older one; None if memory did not run out."""
    newest: BaseException | None = None
    for one in with_causes(error):
        if _is_of_memory(one) and (newest is None or _quotes(newest, one)):
            newest = one
    return newest


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error`, or one of those `with_causes` yields, means that memory ran out."""
    return memory_error_of(error) is not None


def _is_of_memory(error: BaseException) -> bool:
    """Return whether `error` itself means that memory ran out.

    torch raises `OutOfMemoryError` on the GPU, `AcceleratorError` when a CUDA call fails (torch 2.8 and
    newer), and a plain RuntimeError from the CPU allocator and from libraries, some of which have a class of
    their own, as OpenCV; Python itself raises MemoryError, and an OSError where the system refuses a process
    or a mapping. A loader worker that runs out of memory re-raises one of these with its text.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if getattr(error, "error_code", None) == _OUT_OF_MEMORY_CODE:
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM or any(part in text_of(error) for part in _NO_MEMORY_OF_SYSTEM)
    if not isinstance(error, RuntimeError) and not _is_of_library(error):
        return False
    text = excerpt(text_of(error))
    if is_of_shared_memory(text) or any(part in text for part in _TEXTS):
        return True
    return any(pattern.search(text) for pattern in _PATTERNS)


def _is_of_library(error: BaseException) -> bool:
    """Return whether the class of `error` is a library's own."""
    package = str(type(error).__module__).partition(".")[0]
    return isinstance(error, Exception) and package not in _QUOTING_PACKAGES


def is_ambiguous(error: BaseException) -> bool:
    """Return whether `error`, or a cause that it was raised from, may or may not mean that memory ran out:
    the allocator's counters decide (`MemoryWatch.has_failures`)."""
    return any(
        isinstance(one, RuntimeError) and _AMBIGUOUS.search(excerpt(text_of(one))) is not None
        for one in with_causes(error)
    )


def release_frames(error: BaseException) -> None:
    """Clear the frames of `error` and of its causes: they keep the activations of the failed step alive."""
    visited: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        link = pending.pop()
        if link is not None and id(link) not in visited:
            visited.add(id(link))
            traceback.clear_frames(link.__traceback__)
            pending += [link.__cause__, link.__context__]


def attempt(act: Callable[[], Result]) -> Result | None:
    """Return the result of `act`; None if the device fails or memory is short: the report and the outcome of
    an out-of-memory error are written in any case."""
    try:
        return act()
    except MemoryError:
        with suppress(MemoryError):
            print_notice(_INCOMPLETE)
        return None
    except RuntimeError as error:
        print_traceback(error)
        return None


class NoRecoveryError(StepscopeError):
    """Memory ran out in `step` and the run ends; the message is the reason, `detail` a JSON object."""

    def __init__(self, message: str, step: int, detail: str) -> None:
        super().__init__(message)
        self.step = step
        self.detail = detail

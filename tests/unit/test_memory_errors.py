"""Test which errors, as they were published, are of memory, and what is read from their texts."""

import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.analysis.oom.error import is_of_host, read_error
from harness.watch.oom.errors import is_ambiguous, is_out_of_memory

MATERIAL = Path(__file__).parents[1] / "material" / "memory_errors.json"
CLASSES: dict[str, type[BaseException]] = {
    "RuntimeError": RuntimeError,
    "MemoryError": MemoryError,
    "torch.OutOfMemoryError": torch.OutOfMemoryError,
}


def rows() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(MATERIAL.read_text(encoding="utf-8"))
    return result


def an_error(row: dict[str, Any]) -> BaseException:
    """The error of a row; a library's class is made, so that the library need not be installed."""
    name, text = row["class"], row["text"]
    if name == "OSError":
        return OSError(errno.ENOMEM, "Cannot allocate memory")
    if name in CLASSES:
        return CLASSES[name](text)
    return an_error_of_library(name, text)


def an_error_of_library(name: str, text: str) -> Exception:
    module, _, own_name = name.rpartition(".")
    error: Exception = type(own_name, (Exception,), {"__module__": module})(text)
    return error


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["source"])
def test_a_published_error_is_of_memory_or_not(row: dict[str, Any]) -> None:
    assert is_out_of_memory(an_error(row)) == row["is_of_memory"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["source"])
def test_its_sizes_and_the_kind_of_its_memory_are_read(row: dict[str, Any]) -> None:
    if row["is_of_memory"]:
        numbers = read_error(row["text"])
        assert numbers.requested_bytes == row["requested_bytes"]
        assert numbers.total_bytes == row["total_bytes"]
        assert numbers.free_bytes == row["free_bytes"]
        assert is_of_host(row["text"]) == row["is_of_host"]


@pytest.mark.parametrize(
    "text",
    [
        # The words of torch's TORCH_CUDASPARSE_CHECK, on CUDA and, made by hipify, on ROCm.
        "CUDA error: resource allocation failed when calling `cusparseCreate(handle)`",
        "CUDA error: resource allocation failed when calling `hipsparseCreate(handle)`",
        # RCCL's words for what NCCL calls a "Cuda failure".
        "Last error:\nHIP failure: 'out of memory'",
        "CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory",
    ],
)
def test_the_words_of_a_librarys_code_are_those_of_memory(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: insufficient resources when calling `cusparseSpGEMM_workEstimation( handle, opA, opB",
        "CUDA error: library not initialized when calling `cusparseCreate(handle)`",
        "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`. If you",
        "cuFFT error: CUFFT_INTERNAL_ERROR",
    ],
)
def test_a_code_for_more_than_memory_is_left_to_the_counters(text: str) -> None:
    assert is_ambiguous(RuntimeError(text))
    assert not is_out_of_memory(RuntimeError(text))


def test_another_step_of_cusolver_that_fails_is_none_of_memory() -> None:
    text = (
        "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnSgetrf( handle, m, n, dA)`"
    )
    assert not is_ambiguous(RuntimeError(text))


def test_the_system_error_of_a_rust_library_has_the_number_in_its_text() -> None:
    # pola-rs/polars#23173.
    assert is_out_of_memory(OSError("Cannot allocate memory (os error 12)"))
    assert not is_out_of_memory(OSError("No space left on device (os error 28)"))


@pytest.mark.parametrize(
    "text",
    [
        "RESOURCE_EXHAUSTED: Received message larger than max (5242880 vs. 4194304)",
        "The CUDA graph failed to be captured; a smaller batch does not run out of memory.",
        "CUDA error: device-side assert triggered",
    ],
)
def test_words_about_memory_alone_are_no_error_of_memory(text: str) -> None:
    assert not is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize(
    "name",
    ["torch.multiprocessing.spawn.ProcessRaisedException", "__main__.Stop", "concurrent.futures.process.X"],
)
def test_an_error_that_may_quote_another_process_is_none_of_this_one(name: str) -> None:
    assert not is_out_of_memory(an_error_of_library(name, "CUDA out of memory. Tried to allocate 2.00 GiB."))
    assert is_out_of_memory(an_error_of_library("numba.cuda.X", "CUDA_ERROR_OUT_OF_MEMORY"))


@pytest.mark.parametrize(
    ("text", "is_of_memory"),
    [
        ("Error out of memory at line 380 in file pythonInterface.c", True),
        ("Failed to create the context: out of memory", True),
        ("synStatus=26 [Generic failure] Device out of memory", True),
        ("NVJPEG_STATUS_ALLOCATOR_FAILURE", True),
        ("Failed to allocate 268435456 bytes on device 'cuda:0'", True),
        ("Error while deserializing header: Cannot allocate memory (os error 12)", True),
        ("memory bank of 65536 rows: out of memory bank slots", False),
        ("Unexpected key(s) in state_dict: 'memory.out_of_memory_token'", False),
        ("Unsupported option. To avoid out of memory errors use gradient checkpointing.", False),
        ("The handle is busy, out of memory or not initialized", False),
        ("Cuda error: 209[cudaLaunchKernel(func, grid, block, args, 0, stream);]", False),
    ],
)
def test_out_of_memory_counts_where_it_is_what_failed(text: str, is_of_memory: bool) -> None:
    assert is_out_of_memory(RuntimeError(text)) is is_of_memory


@pytest.mark.parametrize(
    "filling",
    ["cuda error ", "RESOURCE_EXHAUSTED ", "NVML_SUCCESS == x ", "9", "unable to write to file </torch_"],
)
def test_of_a_megabyte_of_text_both_ends_are_read_in_no_time(filling: str) -> None:
    text = filling * (1_000_000 // len(filling))
    start = time.process_time()
    assert not is_out_of_memory(RuntimeError(text))
    assert not is_ambiguous(RuntimeError(text))
    assert read_error(text).requested_bytes is None
    assert not is_of_host(text)
    assert time.process_time() - start < 2
    end = "CUDA out of memory. Tried to allocate 2.00 GiB."
    assert is_out_of_memory(RuntimeError(text + end))
    assert read_error(text + end).requested_bytes == 2 * 2**30


def test_an_error_of_a_class_without_a_module_is_read() -> None:
    error: Exception = type("LostError", (Exception,), {"__module__": None})("CUDA_ERROR_OUT_OF_MEMORY")
    assert is_out_of_memory(error)

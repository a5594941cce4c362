"""Test the verdicts on requests that the device had memory for, and on memory that no list names."""

import re
from typing import Any

import pytest

from dashboard.charts.allocations import oom_lines
from harness.analysis.oom.budget import budget
from harness.analysis.oom.error import allowed_bytes, read_error, tensor_bytes
from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import (
    BatchPeak,
    LeakSign,
    LiveSite,
    LiveVariable,
    OomPhase,
    OomReport,
    OomVerdict,
)
from harness.analysis.oom.text import render
from harness.records.run import DeviceKind
from tests.oom_factories import GIB, MIB, some_facts

# pytorch/pytorch#175431, Comfy-Org/ComfyUI#9529, pytorch/pytorch#16417 and #59778.
REFUSED = (
    "HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of 287.98 GiB of which 203.49 "
    "GiB is free. Of the allocated memory 68.63 GiB is allocated by PyTorch, and 14.93 GiB is reserved by "
    "PyTorch but unallocated.",
    "HIP out of memory. Tried to allocate 432.00 MiB. GPU 0 has a total capacity of 15.92 GiB of which 7.12 "
    "GiB is free. Of the allocated memory 8.08 GiB is allocated by PyTorch, and 321.96 MiB is reserved by "
    "PyTorch but unallocated.",
    "CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total capacity; 8.57 MiB already "
    "allocated; 9.28 GiB free; 4.68 MiB cached)",
    "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already "
    "allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)",
)
# The second is ROCm/legacy-rocm-build#4358.
UNLISTED = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 31.75 GiB total capacity; 0 bytes already "
    "allocated; 6.62 MiB free; 0 bytes reserved in total by PyTorch)",
    "HIP out of memory. Tried to allocate 4.50 GiB. GPU 0 has a total capacity of 15.98 GiB of which 1.40 "
    "GiB is free. Of the allocated memory 1.26 GiB is allocated by PyTorch, and 152.50 MiB is reserved by "
    "PyTorch but unallocated.",
)
# From a public file, of a card with the driver's fallback to the host's memory.
BEYOND_THE_CARD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB of which 0 "
    "bytes is free. Of the allocated memory 14.51 GiB is allocated by PyTorch, and 15.90 MiB is reserved by "
    "PyTorch but unallocated."
)
_UNITS = {"bytes": 1, "MiB": MIB, "GiB": GIB}


def size_in(text: str, words: str) -> int | None:
    match = re.search(rf"([0-9.]+) (bytes|MiB|GiB) {words}", text)
    return None if match is None else int(float(match[1]) * _UNITS[match[2]])


def report_on(text: str, device: DeviceKind = DeviceKind.CUDA, **values: Any) -> OomReport:
    """The report on a run with the allocator's counters and the device's memory of `text`."""
    allocated = size_in(text, "(?:is allocated by|already allocated)")
    unallocated, reserved = size_in(text, "is reserved by"), size_in(text, "(?:reserved in total|cached)")
    if reserved is None and allocated is not None:
        reserved = allocated + (unallocated or 0)
    numbers = read_error(text, reserved)
    assert numbers.requested_bytes is not None
    least, most = tensor_bytes(numbers.requested_bytes, device)
    fields: dict[str, Any] = {
        "error": text,
        "error_bytes": numbers.requested_bytes,
        "least_bytes": least,
        "most_bytes": most,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "free_bytes": None,
        "split_free_bytes": unallocated,
        "largest_free_bytes": None,
        "device_free_bytes": numbers.free_bytes,
        "device_total_bytes": numbers.total_bytes,
        "process_bytes": numbers.process_bytes,
        "others_bytes": numbers.others_bytes,
        "cap_bytes": allowed_bytes(text),
    }
    return explain(some_facts(device, **fields | values))


@pytest.mark.parametrize("text", REFUSED)
def test_a_request_below_the_free_memory_was_refused(text: str) -> None:
    report = report_on(text)
    assert report.verdict is OomVerdict.REFUSED
    assert not [line for line in report.evidence if line.startswith("Also")]


def test_the_verdict_on_a_refused_request_has_both_sizes() -> None:
    assert report_on(REFUSED[1]).why.startswith(
        "The driver refused the request for 432 MiB although 7.12 GiB of Test device were free: a limit of"
    )
    on_cpu = explain(some_facts(DeviceKind.CPU, device_free_bytes=20 * GIB))
    assert on_cpu.why.startswith("The system refused the request for 512 MiB although 20.0 GiB of the mach")


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({"device_free_bytes": 570 * MIB}, OomVerdict.TOO_BIG),
        ({"device_free_bytes": 600 * MIB}, OomVerdict.REFUSED),
        ({"device_free_bytes": None}, OomVerdict.TOO_BIG),
        ({"device_free_bytes": 20 * GIB, "cap_bytes": 79 * GIB + 200 * MIB}, OomVerdict.CAP),
        ({"device_free_bytes": 20 * GIB, "cap_bytes": 79 * GIB + 700 * MIB}, OomVerdict.REFUSED),
        # Rounded sizes: 79 GiB and 100 MiB are reserved, 512 MiB requested.
        ({"device_free_bytes": 20 * GIB, "cap_bytes": 79 * GIB + 620 * MIB}, OomVerdict.CAP),
        (
            {"error_bytes": 20 * MIB, "most_bytes": 10 * MIB, "device_free_bytes": 15 * MIB},
            OomVerdict.TOO_BIG,
        ),
    ],
)
def test_only_a_cap_or_a_full_device_leaves_nothing_to_refuse(
    values: dict[str, Any], verdict: OomVerdict
) -> None:
    assert explain(some_facts(**values)).verdict is verdict


def test_of_a_refused_request_no_batch_is_said_to_fit() -> None:
    peaks = (BatchPeak(16, 20 * GIB, 40), BatchPeak(64, 70 * GIB, 40))
    assert explain(some_facts(batch_size=100, peaks=peaks)).counterfactuals[1:]
    (measured,) = explain(some_facts(batch_size=100, peaks=peaks, device_free_bytes=GIB)).counterfactuals
    assert measured.basis.startswith("measured")


def test_a_leak_beside_a_refused_request_is_not_said_to_have_filled_the_memory() -> None:
    leak = LeakSign("allocated", "Allocated had grown by 1.70 MiB per step.", 1.7 * MIB, 6, 30 * GIB)
    report = explain(some_facts(device_free_bytes=20 * GIB, leak=leak))
    assert report.verdict is OomVerdict.REFUSED
    assert f"Memory leaks: {leak.message}" in report.evidence


# From public files: a fraction of the device, set by the script.
@pytest.mark.parametrize(
    ("text", "cap_bytes"),
    [
        (
            "HIP out of memory. Tried to allocate 76.00 MiB. GPU 0 has a total capacity of 255.69 GiB of "
            "which 252.82 GiB is free. 1.20 GiB allowed; Of the allocated memory 1.14 GiB is allocated by "
            "PyTorch, and 18.63 MiB is reserved by PyTorch but unallocated.",
            int(1.2 * GIB),
        ),
        (
            "CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.99 GiB of "
            "which 3.42 GiB is free. 19.19 GiB allowed; Of the allocated memory 19.01 GiB is allocated by "
            "PyTorch",
            int(19.19 * GIB),
        ),
        # With `backend:cudaMallocAsync`.
        (
            "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
            "Currently allocated     : 3.12 GiB\nRequested               : 1.00 GiB\n"
            "Device limit            : 23.64 GiB\nFree (according to CUDA): 18.25 GiB\n"
            "PyTorch limit (set by user-supplied memory fraction)\n                        : 4.00 GiB",
            4 * GIB,
        ),
    ],
)
def test_a_limit_of_the_process_in_the_text_is_its_cap(text: str, cap_bytes: int) -> None:
    assert allowed_bytes(text) == cap_bytes
    assert report_on(text).verdict is OomVerdict.CAP


def test_metals_limit_is_read_too() -> None:
    text = (
        "MPS backend out of memory (MPS allocated: 8.89 GB, other allocations: 1 MB, max allowed: 9.07 GB)."
    )
    assert allowed_bytes(text) == int(9.07 * GIB)
    assert allowed_bytes(REFUSED[0]) is None
    no_limit = "PyTorch limit (set by user-supplied memory fraction)\n          : 17179869184.00 GiB"
    assert allowed_bytes(no_limit) is None


@pytest.mark.parametrize("text", UNLISTED)
def test_memory_in_no_list_is_said_before_the_model_is_too_large(text: str) -> None:
    report = report_on(text)
    assert report.verdict is OomVerdict.UNLISTED
    assert (
        "were neither free nor in use by PyTorch in this process: something uses them that is not listed"
        in report.why
    )


def test_the_verdict_on_unlisted_memory_has_its_size() -> None:
    assert report_on(UNLISTED[1]).why.startswith("13.2 GiB of the 16.0 GiB of Test device were neither free")


def test_where_the_free_memory_is_not_known_it_is_not_said_to_be_in_use() -> None:
    """An older text for Intel's GPUs."""
    report = report_on(
        "XPU out of memory. Tried to allocate 1.00 GiB (GPU 0; 15.56 GiB total capacity; 990.00 MiB already "
        "allocated; 990.00 MiB reserved in total by PyTorch)",
        DeviceKind.XPU,
    )
    assert report.verdict is OomVerdict.UNLISTED
    assert "were not in use by PyTorch in this process; how much of it was free is not known." in report.why


@pytest.mark.parametrize(
    ("reserved_gib", "verdict"), [(71.0, OomVerdict.UNLISTED), (72.5, OomVerdict.TOO_BIG)]
)
def test_a_context_and_a_drivers_reserve_are_not_unlisted_memory(
    reserved_gib: float, verdict: OomVerdict
) -> None:
    reserved = int(reserved_gib * GIB)
    assert explain(some_facts(allocated_bytes=reserved, reserved_bytes=reserved)).verdict is verdict


def test_unlisted_memory_without_which_the_request_would_not_fit_either_is_no_cause() -> None:
    huge: dict[str, Any] = {"error_bytes": 70 * GIB, "least_bytes": 70 * GIB, "most_bytes": 70 * GIB}
    facts = some_facts(allocated_bytes=20 * GIB, reserved_bytes=20 * GIB, **huge)
    assert explain(facts).verdict is OomVerdict.HUGE_REQUEST


def test_more_than_the_card_has_is_in_the_hosts_memory() -> None:
    report = report_on(BEYOND_THE_CARD)
    assert report.verdict is OomVerdict.TOO_BIG
    last = budget(report.facts)[-1]
    assert last.name == "excess: in the host's memory, for which the driver has no space on the device"
    assert last.size_bytes < -6 * GIB
    assert "14.5 GiB were reserved, more than the device has" in render(report)
    on_mps = budget(report.facts._replace(device=DeviceKind.MPS))[-1]
    assert on_mps.name == "excess: above the maximum that Metal recommends"


@pytest.mark.parametrize(
    "error",
    [
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried",
        "Unable to allocate 1.46 TiB for an array with shape (447600, 447600) and data type float64",
        "MemoryError",
        "std::bad_alloc",
        "unable to mmap 32789894024 bytes from file </m.pt>: Cannot allocate memory (12)",
        "level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)",
    ],
)
def test_a_request_for_the_hosts_memory_says_nothing_about_the_gpus(error: str) -> None:
    report = explain(some_facts(error=error, device_free_bytes=20 * GIB, others_bytes=20 * GIB))
    assert report.verdict is OomVerdict.HOST
    assert report.why == "The request was for the host's memory, not for that of Test device: 512 MiB."
    assert explain(some_facts(DeviceKind.CPU, error=error)).verdict is OomVerdict.TOO_BIG


@pytest.mark.parametrize("code", ["cudaErrorMemoryAllocation", "hipErrorOutOfMemory"])
def test_thrusts_bad_alloc_is_one_of_the_gpus_memory(code: str) -> None:
    error = f"std::bad_alloc: {code}: out of memory"
    assert explain(some_facts(error=error)).verdict is OomVerdict.TOO_BIG


def test_a_workers_error_is_one_of_the_hosts_memory_even_if_its_text_is_cut_off() -> None:
    cut = 'Caught RuntimeError in DataLoader worker process 0. Original Traceback: File "torch/utils/da'
    assert explain(some_facts(phase=OomPhase.WORKER, error=cut)).verdict is OomVerdict.HOST
    gpus = cut.replace("RuntimeError", "OutOfMemoryError")
    assert explain(some_facts(phase=OomPhase.WORKER, error=gpus)).verdict is OomVerdict.TOO_BIG


def test_a_batch_that_makes_no_difference_is_not_said_to_have_fit() -> None:
    facts = some_facts(
        DeviceKind.CPU,
        batch_size=37,
        error_bytes=700 * 1024,
        least_bytes=700 * 1024,
        most_bytes=700 * 1024,
        allocated_bytes=170 * MIB,
        reserved_bytes=173 * MIB,
        device_free_bytes=20 * GIB,
        cap_bytes=174 * MIB,
        cap_left_bytes=MIB // 2,
        static_bytes=168 * MIB,
        peaks=(BatchPeak(37, 168 * MIB + 242 * 1024, 200),),
    )
    (statement,) = [c for c in explain(facts).counterfactuals if "batch" in c.text]
    assert statement.text == (
        "A smaller batch would have made next to no difference: of a peak of 168 MiB only 242 KiB depend on "
        "it."
    )
    assert statement.peak_bytes is None


def test_the_usual_cause_of_a_leak_is_evidence() -> None:
    cause = "Live tensors do not grow, the process does: usually Python objects that are appended."
    leak = LeakSign("host", "The process had grown by 168 KiB per step.", 168_000, 6, 30 * GIB, cause=cause)
    assert f"About the leak: {cause}" in explain(some_facts(leak=leak)).evidence
    assert not any("About the leak" in text for text in explain(some_facts()).evidence)


def test_a_report_on_what_failed_before_the_first_step_names_no_step() -> None:
    assert explain(some_facts(step=0)).headline == "Out of memory before the first step"


@pytest.mark.parametrize(("held_bytes", "is_said"), [(8 * GIB, True), (7 * GIB, False)])
def test_a_variable_that_holds_a_tenth_of_the_limit_is_evidence(held_bytes: int, *, is_said: bool) -> None:
    variable = LiveVariable("kept", "train.py:14 train", held_bytes, 1_498)
    facts = some_facts(variables=(variable,), sites=(LiveSite("model.py:3 forward", GIB, 2),))
    sentence = f"The variable kept in train.py:14 train held {held_bytes // GIB:.2f} GiB, in 1,498 objects."
    assert (sentence in explain(facts).evidence) is is_said
    first, second = oom_lines(facts)
    assert (first.what, first.where, first.held_bytes) == ("variable kept", "train.py:14 train", held_bytes)
    assert second.what == "model.py:3 forward"

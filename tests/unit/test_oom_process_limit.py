"""Reports on the CPU where a limit of the process ended the run: of the shell (`ulimit`) or of the script."""

import re
from typing import Any

import pytest

from harness.analysis.oom.budget import budget
from harness.analysis.oom.explain import explain
from harness.analysis.oom.fit import fit
from harness.analysis.oom.report import BatchPeak, LeakSign, OomPhase, OomVerdict, report_from_json, to_json
from harness.analysis.oom.text import render
from harness.records.memory import ProcessLimit
from harness.records.run import DeviceKind
from tests.oom_factories import GIB, MIB, some_facts

LIMIT = ProcessLimit("ulimit -d", 600 * MIB, 599 * MIB, 200 * MIB)
# A script that kept a small tensor per step under `ulimit -d 614400`.
LIMITED: dict[str, Any] = {
    "allocated_bytes": 335 * MIB,
    "reserved_bytes": 336 * MIB,
    "free_bytes": MIB,
    "split_free_bytes": None,
    "largest_free_bytes": None,
    "process_bytes": 700 * MIB,
    "others_bytes": GIB,
    "device_free_bytes": 22 * GIB,
    "device_total_bytes": 24 * GIB,
    "process_limit": LIMIT,
    "error_bytes": MIB,
    "least_bytes": MIB,
    "most_bytes": MIB,
}
# Python's MemoryError has no size.
UNKNOWN_SIZE: dict[str, Any] = {"error_bytes": None, "least_bytes": None, "most_bytes": None}


def test_the_limit_of_the_process_is_the_verdict_with_its_numbers() -> None:
    report = explain(some_facts(DeviceKind.CPU, **LIMITED))
    assert report.verdict is OomVerdict.PROCESS_LIMIT
    assert report.why == (
        "The limit of the process (ulimit -d) of 600 MiB was reached: 335 MiB allocated, 63.0 MiB "
        "outside the heap, 200 MiB in use before the run; 1.00 MiB more were requested."
    )
    assert report_from_json(to_json(report)) == report


def test_a_request_of_unknown_size_is_not_compared_with_the_machine() -> None:
    report = explain(some_facts(DeviceKind.CPU, **LIMITED | UNKNOWN_SIZE))
    assert report.verdict is OomVerdict.PROCESS_LIMIT
    assert "the size of the request is not known." in report.why


def test_a_leak_that_ran_into_the_limit_is_the_verdict_with_the_limit() -> None:
    # More than a quarter of what the limit leaves to the run, and less than a quarter of the whole.
    leak = LeakSign("allocated", "It had grown.", 51_200, 11, 120 * MIB)
    report = explain(some_facts(DeviceKind.CPU, **LIMITED, leak=leak))
    assert report.verdict is OomVerdict.LEAK
    share = "120 MiB of the 400 MiB that the limit of the process (ulimit -d) of 600 MiB left to the run."
    assert share in report.why
    assert any(line.startswith("Also: The limit of the process") for line in report.evidence)


def test_the_parts_of_the_limit_name_the_memory_from_before_the_run() -> None:
    facts = some_facts(DeviceKind.CPU, **LIMITED)
    assert list(budget(facts)) == [
        ("allocated", 335 * MIB),
        ("free in the heap, in pieces between live blocks", MIB),
        ("outside the heap: Python's pools, stacks, libraries' own mappings", 63 * MIB),
        ("in use before the run: Python, libraries", 200 * MIB),
        ("free under the limit", MIB),
    ]
    text = render(explain(facts))
    assert "Limit       600 MiB (limit of the process, ulimit -d), of which" in text
    assert "Also        free on the machine 22.0 GiB" in text
    assert "The device had" not in text


def test_the_reserve_for_the_report_is_a_part_of_its_own() -> None:
    values = LIMITED | {"process_limit": LIMIT._replace(reserve_bytes=8 * MIB)}
    facts = some_facts(DeviceKind.CPU, **values)
    parts = dict(budget(facts))
    assert parts["outside the heap: Python's pools, stacks, libraries' own mappings"] == 55 * MIB
    assert parts["Stepscope's reserve for this report"] == 8 * MIB
    assert "55.0 MiB outside the heap" in explain(facts).why


def test_address_space_that_malloc_has_set_aside_is_a_part_of_its_own() -> None:
    limit = LIMIT._replace(option="ulimit -v", reserve_bytes=8 * MIB, set_aside_bytes=20 * MIB)
    facts = some_facts(DeviceKind.CPU, **LIMITED | {"process_limit": limit})
    parts = dict(budget(facts))
    assert parts["outside the heap: Python's pools, stacks, libraries' own mappings"] == 35 * MIB
    assert parts["set aside by malloc for other threads: address space without memory"] == 20 * MIB
    assert "20.0 MiB set aside by malloc for other threads" in explain(facts).why
    assert facts.memory.outside_bytes == 35 * MIB


def test_a_loaders_worker_fills_the_limit_by_itself() -> None:
    unknown = dict.fromkeys(("allocated_bytes", "reserved_bytes", "free_bytes"))
    limit = ProcessLimit("ulimit -d", 600 * MIB, 600 * MIB, 0)
    values = LIMITED | unknown | {"process_limit": limit, "phase": OomPhase.WORKER}
    report = explain(some_facts(DeviceKind.CPU, **values))
    assert report.verdict is OomVerdict.PROCESS_LIMIT
    assert report.why == (
        "A loader worker reached the limit of the process (ulimit -d) of 600 MiB, which it inherits and "
        "which counts its own memory: 1.00 MiB more requested; how much was allocated is not known."
    )
    assert list(budget(report.facts)) == [("not known: the worker's own memory", 600 * MIB)]
    leak = LeakSign("workers", "They had grown.", 1_000, 8, 900 * MIB)
    leaking = explain(some_facts(DeviceKind.CPU, **values, leak=leak))
    assert leaking.verdict is OomVerdict.LEAK
    assert leaking.why == "A leak had filled the memory of the loader's workers: 900 MiB. They had grown."
    assert any("A loader worker reached the limit" in sentence for sentence in leaking.evidence)


# Of a script that keeps copies of its weights, and of two more.
@pytest.mark.parametrize(
    ("limit_kib", "allocated_mib", "reserved_mib", "left_mib", "reserve_mib"),
    [(500_000, 174, 206.4, 12.3, 8), (500_000, 180, 250, 40, 0), (614_400, 335, 336, 1, 8)],
)
def test_the_numbers_of_the_sentence_sum_to_the_limit(
    limit_kib: int, allocated_mib: float, reserved_mib: float, left_mib: float, reserve_mib: int
) -> None:
    limit_bytes = limit_kib << 10
    used_bytes = limit_bytes - int(left_mib * MIB)
    limit = ProcessLimit("ulimit -d", limit_bytes, used_bytes, 200 * MIB, reserve_mib * MIB)
    values = LIMITED | {"process_limit": limit, "allocated_bytes": int(allocated_mib * MIB)}
    values |= {"reserved_bytes": int(reserved_mib * MIB)}
    values |= {"error_bytes": 16 * MIB, "least_bytes": 16 * MIB, "most_bytes": 16 * MIB}
    why = explain(some_facts(DeviceKind.CPU, **values)).why
    [of_limit, *parts, requested] = [float(number) for number in re.findall(r"([0-9.]+) MiB", why)]
    assert requested == 16
    assert sum(parts) == pytest.approx(of_limit, abs=2)


@pytest.mark.parametrize("used_mib", [100, 380, 560, 599, 700])
@pytest.mark.parametrize("allocated_mib", [0, 335, None])
@pytest.mark.parametrize(("reserve_mib", "set_aside_mib"), [(0, 0), (8, 0), (8, 64)])
def test_the_parts_sum_to_the_limit(
    used_mib: int, allocated_mib: int | None, reserve_mib: int, set_aside_mib: int
) -> None:
    limit = LIMIT._replace(used_bytes=used_mib * MIB, reserve_bytes=reserve_mib * MIB)
    limit = limit._replace(set_aside_bytes=set_aside_mib * MIB)
    values = LIMITED | {"process_limit": limit}
    values["allocated_bytes"] = None if allocated_mib is None else allocated_mib * MIB
    facts = some_facts(DeviceKind.CPU, **values)
    assert sum(part.size_bytes for part in budget(facts)) == 600 * MIB


def test_memory_that_the_failed_step_has_released_is_named() -> None:
    values = LIMITED | {"process_limit": LIMIT._replace(used_bytes=550 * MIB)}
    facts = some_facts(DeviceKind.CPU, **values)
    parts = dict(budget(facts))
    assert parts["in use at the failure, released before this reading (at least)"] == 49 * MIB
    assert "at least 49.0 MiB in temporaries that were released since" in explain(facts).why


def test_a_memory_cap_that_left_less_is_the_limit() -> None:
    facts = some_facts(DeviceKind.CPU, **LIMITED, cap_bytes=340 * MIB, cap_left_bytes=0)
    assert explain(facts).verdict is OomVerdict.CAP
    assert facts.memory.limit_name == "memory cap"


def test_a_limit_of_the_process_that_left_less_than_the_cap_is_the_limit() -> None:
    facts = some_facts(DeviceKind.CPU, **LIMITED, cap_bytes=20 * GIB, cap_left_bytes=19 * GIB)
    assert explain(facts).verdict is OomVerdict.PROCESS_LIMIT
    assert facts.memory.limit_bytes == 600 * MIB


def test_a_limit_that_left_more_than_the_machine_is_none() -> None:
    far = ProcessLimit("ulimit -v", 100 * GIB, 10 * GIB, 5 * GIB)
    facts = some_facts(DeviceKind.CPU, **LIMITED | {"process_limit": far, "device_free_bytes": MIB // 64})
    assert explain(facts).verdict is OomVerdict.OTHER_PROCESS
    assert facts.memory.limit_name == "device"


def test_without_a_limit_a_request_of_unknown_size_is_not_called_too_big_while_memory_was_free() -> None:
    values = LIMITED | UNKNOWN_SIZE | {"process_limit": None}
    report = explain(some_facts(DeviceKind.CPU, **values))
    assert report.verdict is OomVerdict.REFUSED
    assert "a request of unknown size although 22.0 GiB of the machine's memory were available" in report.why
    full = explain(some_facts(DeviceKind.CPU, **values | {"device_free_bytes": GIB}))
    assert full.verdict is OomVerdict.TOO_BIG


def test_other_batches_are_fitted_into_what_the_limit_leaves_to_the_run() -> None:
    peaks = (BatchPeak(8, 100 * MIB, 9), BatchPeak(16, 200 * MIB, 9))
    line = fit(peaks, None)
    assert line is not None
    report = explain(some_facts(DeviceKind.CPU, **LIMITED, peaks=peaks, batch_size=60))
    largest = line.largest_batch(400 * MIB)
    assert f"Any batch above {largest} would have" in " ".join(one.text for one in report.counterfactuals)

"""Test how the limit was divided: parts that add up to it, on every device, whatever is not known."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import words
from harness.analysis.oom.budget import budget, released_bytes
from harness.analysis.oom.error import read_error
from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import OomVerdict
from harness.analysis.oom.text import render
from harness.records.run import DeviceKind
from tests.oom_factories import GIB, MIB, some_facts
from tests.oom_texts import OomText, real_texts

CPU_CAP: dict[str, Any] = {
    "cap_bytes": 410 * MIB,
    "allocated_bytes": 390 * MIB,
    "reserved_bytes": 399 * MIB,
    "free_bytes": 9 * MIB,
    "split_free_bytes": None,
    "largest_free_bytes": None,
    "cap_left_bytes": MIB,
    "device_free_bytes": 21 * GIB,
    "device_total_bytes": 24 * GIB,
    "process_bytes": 700 * MIB,
}


def parts(device: DeviceKind, **values: Any) -> dict[str, int]:
    return dict(budget(some_facts(device, **values)))


def test_a_cap_on_the_cpu_is_divided_into_tensors_holes_the_rest_of_the_process_and_what_is_left() -> None:
    assert list(parts(DeviceKind.CPU, **CPU_CAP).items()) == [
        ("allocated", 390 * MIB),
        ("free in the heap, in pieces between live blocks", 9 * MIB),
        ("outside the heap: Python's pools, stacks, libraries' own mappings", 10 * MIB),
        ("free under the cap", MIB),
    ]


def test_what_fills_holes_from_before_the_run_is_named_since_the_cap_does_not_count_it() -> None:
    result = parts(DeviceKind.CPU, **CPU_CAP | {"cap_left_bytes": 12 * MIB})
    assert [size for name, size in result.items() if name.startswith("excess: in memory that was free")] == [
        -MIB
    ]
    assert result["free under the cap"] == 12 * MIB


def test_an_excess_of_some_pages_is_no_part() -> None:
    """As of a report that ended with "-8.00 KiB excess" of 410 MiB."""
    result = parts(DeviceKind.CPU, **CPU_CAP | {"cap_left_bytes": 11 * MIB + 8 * 2**10})
    assert not [name for name in result if name.startswith("excess")]
    assert sum(result.values()) == 410 * MIB


def test_where_the_kernel_does_not_tell_what_was_left_the_rest_is_not_known() -> None:
    result = parts(DeviceKind.CPU, **CPU_CAP | {"cap_left_bytes": None})
    assert result["not known: memory outside the heap, free memory under the cap"] == 11 * MIB


# A step of 200,000 samples in a net of 64-256-64 under a cap of 358 MiB: relu's output did not fit beside
# that of the layer before it, which was released as the error left the forward pass.
RELEASED: dict[str, Any] = CPU_CAP | {
    "cap_bytes": 375_809_638,
    "allocated_bytes": 88_436_224,
    "reserved_bytes": 89_056_768,
    "free_bytes": 620_544,
    "cap_left_bytes": 286_744_678,
    "error_bytes": 204_800_000,
    "least_bytes": 204_800_000,
    "most_bytes": 204_800_000,
}


def test_temporaries_released_before_the_reading_are_a_part_where_the_request_would_fit_without_them() -> (
    None
):
    text = render(explain(some_facts(DeviceKind.CPU, **RELEASED)))
    assert (
        "The memory cap of 358 MiB was reached: 84.3 MiB allocated, at least 78.1 MiB in temporaries that "
        "were released since, at most 195 MiB free under the cap at the failure; 195 MiB more were requested."
    ) in " ".join(text.split())
    assert "    78.1 MiB  in use at the failure, released before this reading (at least)\n" in text
    assert "     195 MiB  free under the cap at the failure (at most)\n" in text


def test_a_release_too_small_to_show_is_a_part_and_not_in_the_sentence() -> None:
    left = RELEASED["most_bytes"] + MIB // 2
    report = explain(some_facts(DeviceKind.CPU, **RELEASED | {"cap_left_bytes": left}))
    assert "84.3 MiB allocated, 77.7 MiB outside the heap, at most 195 MiB free under the cap" in report.why
    assert "512 KiB  in use at the failure" in render(report)


@pytest.mark.parametrize(
    "other",
    [
        {"most_bytes": 0, "error_bytes": 0, "least_bytes": 0},
        {"most_bytes": None, "error_bytes": None, "least_bytes": None},
        {"cap_left_bytes": 204_799_000},
        {"cap_left_bytes": None},
        {"device_free_bytes": 150 * MIB},
        {"cap_bytes": None},
    ],
)
def test_nothing_was_released_where_the_cap_need_not_have_refused_what_fits(other: dict[str, Any]) -> None:
    assert released_bytes(some_facts(DeviceKind.CPU, **RELEASED | other)) == 0


@given(st.integers(1, 90 * GIB))
def test_what_was_released_at_least_is_printed_as_no_more(size_bytes: int) -> None:
    left = RELEASED["most_bytes"] + size_bytes
    facts = some_facts(DeviceKind.CPU, **RELEASED | {"cap_bytes": 95 * GIB, "cap_left_bytes": left})
    facts = facts._replace(memory=facts.memory._replace(device_total_bytes=200 * GIB))
    released = released_bytes(facts)
    number, unit = words.size(released).replace(",", "").split()
    printed = float(number) * 1024 ** ("B", "KiB", "MiB", "GiB").index(unit)
    assert 0.99 * size_bytes - 1 <= released <= printed + 1
    assert printed <= size_bytes


def test_a_cap_on_a_gpu_is_divided_by_where_free_memory_lies() -> None:
    result = parts(
        DeviceKind.CUDA,
        cap_bytes=10 * GIB,
        allocated_bytes=7 * GIB,
        reserved_bytes=9 * GIB,
        split_free_bytes=GIB,
        free_bytes=GIB // 2,
        private_free_bytes=GIB // 4,
        waiting_bytes=GIB // 4,
    )
    assert result == {
        "allocated": 7 * GIB,
        "free in private pools (CUDA graphs, MemPool)": GIB // 4,
        "freed, waiting for another stream": GIB // 4,
        "free in split blocks": GIB,
        "free in whole segments": GIB // 2,
        "free under the cap": GIB,
    }


def test_of_a_whole_gpu_what_is_not_told_is_named() -> None:
    result = parts(DeviceKind.CUDA, process_bytes=None, others_bytes=None)
    rest = 80 * GIB - 79 * GIB - 200 * MIB
    assert result["not known: this process outside the allocator, other processes"] == rest


def test_parts_that_were_read_one_after_the_other_may_be_too_much_and_say_so() -> None:
    result = parts(DeviceKind.CUDA, others_bytes=4 * GIB)
    assert result["excess: the parts were read one after the other"] < 0


def test_without_a_limit_there_is_nothing_to_divide() -> None:
    assert not parts(DeviceKind.CPU, device_total_bytes=None)


@pytest.mark.parametrize("real", real_texts(), ids=lambda text: text.source)
def test_the_parts_of_every_recorded_text_add_up_to_its_card(real: OomText) -> None:
    numbers = read_error(real.text)
    facts = some_facts(
        allocated_bytes=None,
        reserved_bytes=None,
        device_total_bytes=numbers.total_bytes,
        device_free_bytes=numbers.free_bytes,
        process_bytes=numbers.process_bytes,
        others_bytes=numbers.others_bytes,
    )
    result = budget(facts)
    assert sum(part.size_bytes for part in result) == (numbers.total_bytes or 0)
    is_open = numbers.process_bytes is None and bool(result)
    assert any(part.name.startswith("not known") for part in result) or not is_open


SIZES = st.one_of(st.none(), st.integers(0, 90 * GIB))
FIELDS = (
    "allocated_bytes",
    "reserved_bytes",
    "free_bytes",
    "split_free_bytes",
    "private_free_bytes",
    "waiting_bytes",
    "device_free_bytes",
    "device_total_bytes",
    "process_bytes",
    "others_bytes",
    "cap_bytes",
    "cap_left_bytes",
)


@given(st.sampled_from(DeviceKind), st.lists(SIZES, min_size=len(FIELDS), max_size=len(FIELDS)))
def test_whatever_is_known_the_parts_add_up_to_the_limit(device: DeviceKind, sizes: list[int | None]) -> None:
    facts = some_facts(device, **dict(zip(FIELDS, sizes, strict=True)))
    result = budget(facts)
    assert sum(part.size_bytes for part in result) == (facts.memory.limit_bytes or 0)
    names = [part.name for part in result]
    assert len(set(names)) == len(names)
    assert all(one.name.startswith("excess") for one in result if one.size_bytes < 0)
    assert not any(first == second for first, second in itertools.pairwise(names))


def test_a_rest_too_small_to_show_leaves_what_was_allocated_as_it_is() -> None:
    result = parts(DeviceKind.CPU, **CPU_CAP | {"reserved_bytes": 410 * MIB + 2**19, "cap_left_bytes": 0})
    assert result["allocated"] == 390 * MIB
    assert sum(result.values()) == 410 * MIB


def test_private_pools_are_those_of_cuda_graphs_or_of_the_script() -> None:
    report = explain(some_facts(private_free_bytes=600 * MIB, reserved_bytes=80 * GIB))
    assert report.verdict is OomVerdict.PRIVATE_POOLS
    assert report.why.startswith("600 MiB were free in private pools (CUDA graphs, torch.cuda.MemPool), ")


def test_holes_as_large_as_the_request_were_none_at_the_failure() -> None:
    """Those of `views = [crop(image) for _ in range(n)]`: the error frees the list."""
    holes = CPU_CAP | {"allocated_bytes": 30 * MIB, "reserved_bytes": 320 * MIB, "cap_left_bytes": 0}
    limits: dict[str, Any] = {"error_bytes": 64 << 10, "least_bytes": 64 << 10, "most_bytes": 64 << 10}
    facts = some_facts(DeviceKind.CPU, **holes | limits)
    assert explain(facts).verdict is OomVerdict.FRAGMENTATION
    freed = some_facts(DeviceKind.CPU, **holes | limits | {"large_hole_bytes": 280 * MIB})
    report = explain(freed)
    assert report.verdict is OomVerdict.CAP
    assert "10.0 MiB free in the heap in pieces, 280 MiB free in the heap since the failure" in report.why
    assert sum(part.size_bytes for part in budget(freed)) == freed.memory.limit_bytes


def test_where_the_request_is_unknown_so_is_what_the_failed_functions_had() -> None:
    unknown: dict[str, Any] = {"error_bytes": None, "least_bytes": None, "most_bytes": None}
    report = explain(some_facts(DeviceKind.CPU, **RELEASED | unknown))
    assert "273 MiB free under the cap at this reading" in report.why
    assert (
        "     273 MiB  free under the cap at this reading: of it the failed functions had an unknown part\n"
    ) in render(report)

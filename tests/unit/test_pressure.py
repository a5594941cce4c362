"""Levels of memory pressure."""

import pytest

from harness.analysis.memory.pressure import Level, pressure
from harness.records.memory import MemorySampleRow
from harness.records.run import StepRow
from tests.store_factories import a_step

GIB = 2**30


def a_sample(
    used: int | None, total: int | None = 80 * GIB, reserved: int | None = 40 * GIB
) -> MemorySampleRow:
    nothing = dict.fromkeys(MemorySampleRow._fields)
    fields = nothing | {"seq": 0, "t_ns": 0, "step": 1}
    return MemorySampleRow(**fields)._replace(  # type: ignore[arg-type]  # None fits the rest
        used_bytes=used, total_bytes=total, reserved_bytes=reserved
    )


def peaks(*values: int | None) -> list[StepRow]:
    return [a_step(at + 1)._replace(peak_allocated_bytes=value) for at, value in enumerate(values)]


@pytest.mark.parametrize(
    ("peak_gib", "level"),
    [
        (9.19, Level.CALM),
        (9.2, Level.TIGHT),
        (9.69, Level.TIGHT),
        (9.7, Level.VERY_TIGHT),
        (11, Level.VERY_TIGHT),
    ],
)
def test_under_a_cap_the_highest_recent_peak_counts(peak_gib: float, level: Level) -> None:
    result = pressure(peaks(1, round(peak_gib * GIB), None), None, 10 * GIB, is_cpu=True)
    assert result is not None
    assert result.level is level
    assert "10.0 GiB" in result.sentence


@pytest.mark.parametrize(("cap_gib", "limit_gib"), [(None, 2), (4, 2)])
def test_the_limit_of_the_process_counts_where_it_is_the_lowest(cap_gib: int | None, limit_gib: int) -> None:
    cap_bytes = None if cap_gib is None else cap_gib * GIB
    sample = a_sample(used=4 * GIB)
    result = pressure(peaks(GIB, 2 * GIB - 1), sample, cap_bytes, True, limit_gib * GIB)
    assert result is not None
    assert (result.available_bytes, result.level) == (2 * GIB, Level.VERY_TIGHT)
    assert "the 2.00 GiB available to this run (under the limit of its process)" in result.sentence
    capped = pressure(peaks(GIB), sample, GIB, True, 2 * GIB)
    assert capped is not None
    assert capped.what == "its cap"
    assert not capped.is_of_machine


def test_on_a_card_memory_of_other_processes_is_not_available() -> None:
    result = pressure(peaks(35 * GIB), a_sample(used=78 * GIB), None, is_cpu=False)
    assert result is not None
    assert result.available_bytes == 42 * GIB
    assert "38.0 GiB of its context and other processes" in result.sentence


def test_on_the_cpu_the_whole_machine_counts() -> None:
    result = pressure(peaks(GIB), a_sample(used=79 * GIB), None, is_cpu=True)
    assert result is not None
    assert result.level is Level.VERY_TIGHT


@pytest.mark.parametrize("is_cpu", [True, False])
def test_without_measurements_there_is_no_pressure(is_cpu: bool) -> None:
    assert pressure([], None, 10 * GIB, is_cpu) is None
    assert pressure(peaks(5), None, None, is_cpu) is None
    assert pressure(peaks(5), a_sample(None), None, is_cpu) is None
    assert pressure(peaks(None), a_sample(5, reserved=None), None, is_cpu=False) is None

"""The parts of a profile add up to its whole, and differences to the difference of the wholes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.profiles import by_kind, by_module, by_operator, compare, self_ns
from harness.profiling.kinds import classify
from harness.records.profile import OperatorKind, ProfileModuleRow, ProfileOpRow, ProfileReason, ProfileRow

TIMES = st.integers(0, 10**10)
KINDS = st.sampled_from([kind.value for kind in OperatorKind if kind is not OperatorKind.IDLE])


def a_profile(wall_ns: int | None, busy_ns: int | None, steps: int = 3, on_device: int = 1) -> ProfileRow:
    reason = ProfileReason.REQUESTED
    return ProfileRow(
        1, 0, 10, steps, 1, reason, on_device, wall_ns, busy_ns, 1, 1.1, 0, 0, None, None, "So.", ""
    )


@st.composite
def operators(draw: st.DrawFn) -> list[ProfileOpRow]:
    rows = []
    for rank in range(1, draw(st.integers(1, 12))):
        is_kernel, own, device = draw(st.booleans()), draw(TIMES), draw(TIMES)
        cpu = 0 if is_kernel else own
        name = f"{'k' if is_kernel else 'o'}{rank}"
        rows.append(
            ProfileOpRow(1, rank, name, draw(KINDS), int(is_kernel), rank, cpu, cpu, device, device, None)
        )
    return rows


@st.composite
def profiles(draw: st.DrawFn) -> ProfileRow:
    busy_ns = draw(TIMES)
    return a_profile(
        busy_ns + draw(st.integers(1, 10**9)), busy_ns, draw(st.integers(1, 20)), draw(st.integers(0, 1))
    )


@given(operators(), profiles())
def test_kinds_and_idle_time_are_the_wall_time(rows: list[ProfileOpRow], profile: ProfileRow) -> None:
    parts = by_kind(rows, profile)
    assert parts[-1].name == OperatorKind.IDLE
    if sum(self_ns(row, profile) or 0 for row in rows):
        assert sum(part.time_ns for part in parts) == pytest.approx(profile.wall_ns)
        assert sum(part.share or 0 for part in parts) == pytest.approx(1)
    assert sum(part.calls for part in parts) == sum(
        row.calls for row in rows if row.is_kernel == profile.on_device
    )


@given(operators(), profiles())
def test_operators_sum_to_their_self_time(rows: list[ProfileOpRow], profile: ProfileRow) -> None:
    parts = by_operator(rows, profile)
    assert sum(part.time_ns for part in parts) == sum(self_ns(row, profile) or 0 for row in rows)
    assert [part.time_ns for part in parts] == sorted((part.time_ns for part in parts), reverse=True)


@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "a.b"]), st.sampled_from(["forward", "backward"]), TIMES))
)
def test_modules_sum_over_their_phases(modules: list[tuple[str, str, int]]) -> None:
    rows = [ProfileModuleRow(1, path, phase, "C", 3, own, own, own, own) for path, phase, own in modules]
    parts = by_module(rows, a_profile(10**9, 10**9))
    assert {part.name for part in parts} == {row.module for row in rows}
    assert sum(part.time_ns for part in parts) == sum(own for _, _, own in modules)


@given(operators(), operators(), profiles(), profiles())
def test_differences_by_kind_sum_to_that_of_the_step(
    before: list[ProfileOpRow], after: list[ProfileOpRow], old: ProfileRow, new: ProfileRow
) -> None:
    new = new._replace(on_device=old.on_device)
    parts = by_kind(before, old), by_kind(after, new)
    result = compare(*parts, (old, new))
    total = sum(one.difference_ns for one in result.changes)
    expected = sum(p.time_ns for p in parts[1]) / new.steps - sum(p.time_ns for p in parts[0]) / old.steps
    assert total == pytest.approx(expected, abs=1e-3)
    assert result.verdict.endswith(".")
    assert {one.name for one in result.changes} == {part.name for part in (*parts[0], *parts[1])}


def test_idle_time_is_unknown_where_the_wall_time_is() -> None:
    assert [part.name for part in by_kind([], a_profile(None, None))] == []


@pytest.mark.parametrize(("steps", "on_device", "why"), [(0, 1, "failed"), (3, 0, "operators on the CPU")])
def test_profiles_that_cannot_be_compared_are_an_error(steps: int, on_device: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        compare([], [], (a_profile(9, 9), a_profile(9, 9, steps, on_device)))


def kernels(matmul_ns: int) -> list[ProfileOpRow]:
    return [ProfileOpRow(1, 1, "gemm", OperatorKind.MATMUL, 1, 3, 0, 0, matmul_ns, matmul_ns, None)]


def test_a_verdict_names_the_change_and_what_changed_most() -> None:
    old, new = a_profile(300_000_000, 290_000_000), a_profile(150_000_000, 140_000_000)
    result = compare(by_kind(kernels(290), old), by_kind(kernels(140), new), (old, new), "AMP bf16")
    assert result.verdict == (
        "After AMP bf16 a step takes 50 % less time (100 ms → 50.0 ms); most of the difference is in "
        "matrix multiply (−52 %)."
    )


def test_equal_steps_get_an_equal_verdict() -> None:
    old, new = a_profile(300_000_000, 290_000_000), a_profile(301_000_000, 290_000_000)
    result = compare(by_kind(kernels(290), old), by_kind(kernels(290), new), (old, new))
    assert result.verdict.startswith("A step takes as long as before (100 ms)")


@given(st.text(alphabet="abct_:<>(){}, 0#toNHWCnhwc", max_size=400))
def test_any_name_has_a_kind_that_only_idle_time_is_not(name: str) -> None:
    assert classify(name) is not OperatorKind.IDLE

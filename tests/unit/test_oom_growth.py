"""Test the growth of live memory that an out-of-memory report states where the detector has no verdict."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import LeakSign, LiveVariable, OomVerdict
from harness.records.memory import LeakSeries
from harness.records.run import DeviceKind, SettingsRow, StepFlag, StepRow
from harness.settings import Settings
from harness.store.appender import LogAppender
from harness.watch.oom.growth import growing_memory, with_growth
from harness.watch.oom.history import read_history
from tests.leak_factories import MIB, a_row
from tests.oom_factories import GIB, some_facts
from tests.store_factories import a_run

KEPT = LiveVariable("kept", "train.py:12 train", 150 * MIB, 300)
# Most of what the cap covers is in holes of the heap, or seems to be.
CAPPED = {
    "allocated_bytes": 160 * MIB,
    "reserved_bytes": 256 * MIB,
    "cap_bytes": 256 * MIB,
    "cap_left_bytes": 0,
    "device_free_bytes": 20 * GIB,
    "device_total_bytes": 24 * GIB,
    "error_bytes": MIB,
    "least_bytes": MIB,
    "most_bytes": MIB,
}


def rows_of(level_mib: Callable[[int], float], steps: int = 100) -> list[StepRow]:
    return [a_row(step, int(level_mib(step) * MIB)) for step in range(1, steps + 1)]


def a_sign(leaked_mib: int, series: LeakSeries = LeakSeries.ALLOCATED, **values: Any) -> LeakSign:
    return LeakSign(series, f"{leaked_mib} MiB.", 1.0, 1, leaked_mib * MIB, **values)


def test_even_growth_is_found_in_few_steps_and_over_a_change_of_settings() -> None:
    rows = [row._replace(settings_version=1 + row.step // 11) for row in rows_of(lambda step: 2 * step, 25)]
    growth = growing_memory(rows)
    assert growth is not None
    assert growth.bytes_per_step == pytest.approx(2 * MIB)
    assert (growth.since_step, growth.risen_bytes) == (6, 38 * MIB)


def test_growth_that_began_late_is_found_in_the_newest_steps() -> None:
    growth = growing_memory(rows_of(lambda step: max(0, step - 500), 1_000))
    assert growth is not None
    assert growth.since_step >= 500
    assert growth.bytes_per_step == pytest.approx(MIB)


@pytest.mark.parametrize(
    "level_mib",
    [
        lambda _step: 64,
        # One allocation that stays, as of a copy of the weights.
        lambda step: 64 + 200 * (step > 40),
        # What each epoch gathers, and frees at its end.
        lambda step: 64 + step % 10,
        lambda step: 300 - step,
    ],
)
def test_other_levels_do_not_grow(level_mib: Callable[[int], float]) -> None:
    assert growing_memory(rows_of(level_mib)) is None


@pytest.mark.parametrize("name", ["samples", "tokens"])
def test_memory_that_grows_with_the_inputs_is_not_said_to_leak(name: str) -> None:
    rows = [row._replace(**{name: 64 + row.step}) for row in rows_of(lambda step: step)]
    assert growing_memory(rows) is None


def test_the_warm_up_and_too_few_steps_are_no_evidence() -> None:
    rows = rows_of(lambda step: step, 13)
    assert growing_memory(rows) is not None
    assert growing_memory([row._replace(flags=int(StepFlag.WARM_UP)) for row in rows[:6]] + rows[6:]) is None
    assert growing_memory([row._replace(allocated_bytes=None) for row in rows]) is None


@pytest.mark.parametrize(
    ("variables", "is_held"),
    [
        ((KEPT,), True),
        ((KEPT._replace(name="loss", held_bytes=200 * MIB, saved_bytes=190 * MIB), KEPT), True),
        ((), False),
        ((KEPT._replace(held_bytes=40 * MIB),), False),
        ((KEPT._replace(saved_bytes=140 * MIB),), True),
        # The graph of the step that failed, and its batch.
        ((KEPT._replace(held_bytes=200 * MIB, saved_bytes=190 * MIB),), False),
        ((KEPT._replace(blocks=1),), False),
    ],
)
def test_growth_counts_if_a_variable_holds_it(variables: tuple[LiveVariable, ...], *, is_held: bool) -> None:
    growth = a_sign(100, is_certain=False)
    assert with_growth(None, growth, variables) == (growth if is_held else None)


def test_the_larger_of_leak_and_growth_is_stated() -> None:
    growth = a_sign(100, is_certain=False)
    assert with_growth(a_sign(120), growth, (KEPT,)) == a_sign(120)
    since_the_change = a_sign(60, hunt="At train.py:12.", cause="A list.")
    assert with_growth(since_the_change, growth, (KEPT,)) == a_sign(
        100, hunt="At train.py:12.", cause="A list."
    )
    assert with_growth(a_sign(60, LeakSeries.FRAGMENTATION), growth, (KEPT,)) == growth
    assert with_growth(a_sign(60), None, (KEPT,)) == a_sign(60)


def test_a_variable_that_grew_until_the_failure_is_the_cause_and_not_the_holes(tmp_path: Path) -> None:
    versions = [SettingsRow(1, 1, 0, "{}", "{}", None), SettingsRow(2, 60, 0, "{}", json.dumps({}), "c2")]
    rows = [
        row._replace(settings_version=1 + (row.step >= 60)) for row in rows_of(lambda step: 10 + 2 * step, 75)
    ]
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        appender.append(rows, versions)
    history = read_history(tmp_path / "log.sqlite3", 76, Settings(), on_cpu=True)
    assert history.leak is None
    before = explain(some_facts(DeviceKind.CPU, variables=(KEPT,), **CAPPED))
    assert before.verdict is OomVerdict.FRAGMENTATION
    leak = with_growth(history.leak, history.growth, (KEPT,))
    report = explain(some_facts(DeviceKind.CPU, leak=leak, variables=(KEPT,), **CAPPED))
    assert report.verdict is OomVerdict.LEAK
    assert report.why == (
        "A leak had most likely filled the memory: 140 MiB of the memory cap of 256 MiB. Memory in live "
        "tensors and other objects on the heap had grown by 2.00 MiB per step since step 6."
    )
    assert not any("fragmented" in one for one in report.evidence)

"""What a run's own log says about the time before it ran out of memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.oom.report import BatchPeak, RecentChange
from harness.memory_records import LeakRow, LeakSeries, LeakVerdict, MemorySampleRow
from harness.records import SettingsRow, StepFlag
from harness.selection import resolve
from harness.settings import Settings
from harness.store.appender import LogAppender
from harness.store.inserts import Row
from harness.train.oom_recall import STEPS, Recollection, recall
from tests.store_factories import a_run, a_step

SETTINGS = resolve({"model": "mlp", "batch_size": 8})


def a_version(version: int, step: int, settings: Settings, **changed: Any) -> SettingsRow:
    command = None if version == 1 else f"c{version}"
    return SettingsRow(version, step, 0, settings.model_dump_json(), json.dumps(changed), command)


def with_batch(batch_size: int, **values: Any) -> Settings:
    return resolve({"model": "mlp", "batch_size": batch_size, **values})


def a_leak(series: LeakSeries, verdict: LeakVerdict, message: str) -> LeakRow:
    return LeakRow(0, 1, series, verdict, 1, 2.5, 2.0, 3.0, 100, None, None, message, None)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def written(path: Path, versions: list[int], rows: list[Row]) -> Path:
    """A log with one step for each of `versions`, its settings' version; the peak is the step's number."""
    steps = [
        a_step(n)._replace(
            settings_version=version,
            peak_allocated_bytes=n,
            flags=int(StepFlag.WARM_UP) if n <= 2 else int(StepFlag.NONE),
        )
        for n, version in enumerate(versions, 1)
    ]
    with LogAppender(path, a_run()) as appender:
        appender.append(steps, rows)
    return path


def test_the_last_steps_are_told_one_by_one(path: Path) -> None:
    told = recall(written(path, [1] * 70, [a_version(1, 1, SETTINGS)]), 71, SETTINGS)
    assert [step.step for step in told.steps] == list(range(71 - STEPS, 71))
    assert told.steps[-1] == (70, a_step(70).step_ns, 10_000_070, 70, 20_000_000)


def test_peaks_are_told_for_each_batch_size_without_the_warm_up(path: Path) -> None:
    rows: list[Row] = [a_version(1, 1, SETTINGS), a_version(2, 6, with_batch(16), batch_size=16)]
    told = recall(written(path, [1] * 5 + [2] * 4, rows), 10, with_batch(32))
    assert told.peaks == (BatchPeak(8, 5, 3), BatchPeak(16, 9, 4))


def test_steps_under_other_settings_say_nothing_about_a_peak(path: Path) -> None:
    rows: list[Row] = [
        a_version(1, 1, SETTINGS),
        a_version(2, 6, with_batch(16, amp="bf16"), batch_size=16, amp="bf16"),
        a_version(3, 9, with_batch(16, learning_rate=0.5), learning_rate=0.5),
    ]
    told = recall(written(path, [1] * 5 + [2] * 3 + [3] * 2, rows), 11, with_batch(32))
    assert told.peaks == (BatchPeak(8, 5, 3), BatchPeak(16, 10, 2))


def test_the_change_before_it_is_told_unless_it_is_long_ago(path: Path) -> None:
    rows: list[Row] = [a_version(1, 1, SETTINGS), a_version(2, 6, with_batch(16), batch_size=16)]
    written(path, [1] * 5, rows)
    change = recall(path, 6, with_batch(16)).change
    assert change == RecentChange(6, 0, "Batch size 8 → 16 (loader rebuilt).", "c2")
    assert recall(path, 500, with_batch(16)).change is None


def test_a_leak_that_stands_is_told_and_one_taken_back_is_not(path: Path) -> None:
    rows: list[Row] = [
        a_version(1, 1, SETTINGS),
        a_leak(LeakSeries.HOST, LeakVerdict.LEAK, "The host leaks."),
        a_leak(LeakSeries.ALLOCATED, LeakVerdict.LEAK, "Tensors leak."),
        a_leak(LeakSeries.WORKERS, LeakVerdict.LEAK, "Workers leak."),
        a_leak(LeakSeries.WORKERS, LeakVerdict.STEADY, "They do not."),
    ]
    leak = recall(written(path, [1] * 5, rows), 6, SETTINGS).leak
    assert leak is not None
    assert (leak.series, leak.message, leak.bytes_per_step) == ("allocated", "Tensors leak.", 2.5)


def test_other_processes_are_what_is_used_and_not_ours(path: Path) -> None:
    sample = MemorySampleRow(1, 0, 5, *(None,) * 7, 30, 100, 1000)
    rows: list[Row] = [a_version(1, 1, SETTINGS), sample]
    assert recall(written(path, [1] * 5, rows), 6, SETTINGS).others_bytes == 70


def test_without_a_log_there_is_nothing_to_tell(path: Path) -> None:
    assert recall(path, 6, SETTINGS) == Recollection()

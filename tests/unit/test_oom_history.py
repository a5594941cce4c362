"""Test what a run's own log says about the time before it ran out of memory."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.leak.wording import BESIDE_TENSORS
from harness.analysis.oom.report import BatchPeak, RecentChange
from harness.records.memory import (
    LeakRow,
    LeakSeries,
    LeakVerdict,
    MemorySampleRow,
    SnapshotReason,
    SnapshotRow,
)
from harness.records.run import SettingsRow, StepFlag
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.inserts import Row
from harness.watch.oom.history import STEPS, RunHistory, leak_sign, read_history
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
    text = read_history(written(path, [1] * 70, [a_version(1, 1, SETTINGS)]), 71, SETTINGS, on_cpu=False)
    assert [step.step for step in text.steps] == list(range(71 - STEPS, 71))
    assert text.steps[-1] == (70, a_step(70).step_ns, 10_000_070, 70, 20_000_000)


def test_peaks_are_told_for_each_batch_size_without_the_warm_up(path: Path) -> None:
    rows: list[Row] = [a_version(1, 1, SETTINGS), a_version(2, 6, with_batch(16), batch_size=16)]
    text = read_history(written(path, [1] * 5 + [2] * 4, rows), 10, with_batch(32), on_cpu=False)
    assert text.peaks == (BatchPeak(8, 5, 3), BatchPeak(16, 9, 4))


def test_peaks_of_a_run_that_ended_in_its_warm_up_are_those_after_the_first_step(path: Path) -> None:
    history = read_history(written(path, [1, 1], [a_version(1, 1, SETTINGS)]), 3, SETTINGS, on_cpu=True)
    assert history.peaks == (BatchPeak(8, 2, 1),)


def test_fp16_may_have_no_optimizer_state_during_the_warm_up(path: Path) -> None:
    fp16 = with_batch(8, amp="fp16")
    history = read_history(written(path, [1, 1], [a_version(1, 1, fp16)]), 3, fp16, on_cpu=False)
    assert history.peaks == ()


def test_steps_under_other_settings_say_nothing_about_a_peak(path: Path) -> None:
    rows: list[Row] = [
        a_version(1, 1, SETTINGS),
        a_version(2, 6, with_batch(16, amp="bf16"), batch_size=16, amp="bf16"),
        a_version(3, 9, with_batch(16, learning_rate=0.5), learning_rate=0.5),
    ]
    text = read_history(written(path, [1] * 5 + [2] * 3 + [3] * 2, rows), 11, with_batch(32), on_cpu=False)
    assert text.peaks == (BatchPeak(8, 5, 3), BatchPeak(16, 10, 2))


def of_a_script(version: int, step: int, **values: Any) -> SettingsRow:
    return a_version(version, step, Settings())._replace(settings=json.dumps(values))


def test_settings_that_a_script_does_not_have_say_nothing_against_its_peaks(path: Path) -> None:
    rows: list[Row] = [
        of_a_script(1, 0, amp="off", batch_size=8),
        of_a_script(2, 6, amp="off", batch_size=16),
    ]
    text = read_history(written(path, [1] * 5 + [2] * 4, rows), 10, with_batch(16), on_cpu=False)
    assert text.peaks == (BatchPeak(8, 5, 3), BatchPeak(16, 9, 4))
    assert text.names == frozenset({"amp", "batch_size"})


def test_the_first_step_with_another_loader_is_none_of_the_batch_size_before(path: Path) -> None:
    rows: list[Row] = [of_a_script(1, 0, batch_size=8), of_a_script(2, 7, batch_size=16)]
    written(path, [1] * 6 + [2] * 4, rows)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE steps SET samples = CASE WHEN step < 6 THEN 8 ELSE 16 END")
    peaks = read_history(path, 11, with_batch(16), on_cpu=False).peaks
    assert peaks == (BatchPeak(8, 5, 3), BatchPeak(16, 10, 4))


def test_steps_with_different_samples_all_count(path: Path) -> None:
    rows: list[Row] = [of_a_script(1, 0, batch_size=8)]
    written(path, [1] * 10, rows)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE steps SET samples = step % 3 + 6")
    assert read_history(path, 11, with_batch(8), on_cpu=False).peaks == (BatchPeak(8, 10, 8),)


def test_a_batch_size_without_a_batch_of_its_size_has_no_peak(path: Path) -> None:
    rows: list[Row] = [of_a_script(1, 0, batch_size=8), of_a_script(2, 10, batch_size=16)]
    written(path, [1] * 9 + [2], rows)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE steps SET samples = CASE WHEN step < 9 THEN 8 ELSE 3 END")
    assert [peak.batch_size for peak in read_history(path, 11, with_batch(16), on_cpu=False).peaks] == [8]


def test_a_script_without_a_batch_size_has_no_peaks_by_batch(path: Path) -> None:
    rows: list[Row] = [of_a_script(1, 0, amp="off")]
    assert read_history(written(path, [1] * 14, rows), 15, Settings(), on_cpu=False).peaks == ()


def test_the_change_before_it_is_told_unless_it_is_long_ago(path: Path) -> None:
    rows: list[Row] = [a_version(1, 1, SETTINGS), a_version(2, 6, with_batch(16), batch_size=16)]
    written(path, [1] * 5, rows)
    change = read_history(path, 6, with_batch(16), on_cpu=False).change
    assert change == RecentChange(6, 0, "Batch size 8 → 16 (loader rebuilt).", "c2")
    assert read_history(path, 500, with_batch(16), on_cpu=False).change is None


def test_a_loader_of_the_script_with_other_values_was_not_rebuilt(path: Path) -> None:
    by_script = a_version(2, 6, with_batch(16), batch_size=16)._replace(command_id=None)
    written(path, [1] * 5, [a_version(1, 1, SETTINGS), by_script])
    change = read_history(path, 6, with_batch(16), on_cpu=False).change
    assert change == RecentChange(6, 0, "Batch size 8 → 16.", None)


def test_a_change_of_a_setting_that_the_script_declares_is_named(path: Path) -> None:
    before = of_a_script(1, 0, amp="off", dropout=0.1)
    after = of_a_script(2, 6, amp="off", dropout=0.5)._replace(changed='{"dropout": 0.5}', command_id="c2")
    written(path, [1] * 5, [before, after])
    change = read_history(path, 6, Settings(), on_cpu=False).change
    assert change == RecentChange(6, 0, "dropout 0.1 → 0.5.", "c2")


def test_values_that_became_known_are_no_change(path: Path) -> None:
    written(path, [1] * 5, [of_a_script(1, 0, amp="off"), of_a_script(2, 6, amp="off", batch_size=8)])
    assert read_history(path, 6, Settings(), on_cpu=False).change is None


def test_a_leak_that_stands_is_told_and_one_taken_back_is_not(path: Path) -> None:
    rows: list[Row] = [
        a_version(1, 1, SETTINGS),
        a_leak(LeakSeries.HOST, LeakVerdict.LEAK, "The host leaks."),
        a_leak(LeakSeries.ALLOCATED, LeakVerdict.LEAK, "Tensors leak."),
        a_leak(LeakSeries.WORKERS, LeakVerdict.LEAK, "Workers leak."),
        a_leak(LeakSeries.WORKERS, LeakVerdict.STEADY, "They do not."),
    ]
    leak = read_history(written(path, [1] * 5, rows), 6, SETTINGS, on_cpu=False).leak
    assert leak is not None
    assert (leak.series, leak.since_step, leak.leaked_bytes) == ("allocated", 1, 112)
    assert leak.message == "Memory in live tensors had grown by 2 B per step since step 1."
    assert leak.hunt is None


def test_other_processes_are_what_is_used_and_not_ours(path: Path) -> None:
    sample = MemorySampleRow(1, 0, 5, *(None,) * 7, 30, 100, 1000)
    rows: list[Row] = [a_version(1, 1, SETTINGS), sample]
    assert read_history(written(path, [1] * 5, rows), 6, SETTINGS, on_cpu=False).others_bytes == 70


def test_without_a_log_there_is_nothing_to_tell(path: Path) -> None:
    assert read_history(path, 6, SETTINGS, on_cpu=False) == RunHistory()


def called(path: Path, *leaks: LeakRow, on_cpu: bool = True) -> str | None:
    """The series that is blamed in step 6 after these verdicts."""
    text = read_history(
        written(path, [1] * 5, [a_version(1, 1, SETTINGS), *leaks]), 6, SETTINGS, on_cpu=on_cpu
    )
    return None if text.leak is None else text.leak.series


@pytest.mark.parametrize(
    ("series", "on_cpu", "is_blamed"),
    [
        (LeakSeries.HOST, True, True),
        (LeakSeries.HOST, False, False),
        (LeakSeries.FRAGMENTATION, False, True),
        (LeakSeries.WORKERS, True, False),
    ],
)
def test_only_what_counts_against_the_limit_is_blamed(
    path: Path, series: LeakSeries, on_cpu: bool, is_blamed: bool
) -> None:
    result = called(path, a_leak(series, LeakVerdict.LEAK, "It leaks."), on_cpu=on_cpu)
    assert result == (series.value if is_blamed else None)


def test_a_leak_of_the_workers_is_the_sign_for_an_error_in_one_of_them(path: Path) -> None:
    leaks: list[Row] = [a_leak(series, LeakVerdict.LEAK, "It leaks.") for series in LeakSeries]
    rows = [a_version(1, 1, SETTINGS), *leaks]
    history = read_history(written(path, [1] * 5, rows), 6, SETTINGS, on_cpu=False)
    assert history.worker_leak is not None
    assert history.worker_leak.series == LeakSeries.WORKERS


def test_a_detector_that_began_anew_has_taken_nothing_back(path: Path) -> None:
    verdicts = [
        a_leak(LeakSeries.ALLOCATED, verdict, "So.") for verdict in (LeakVerdict.LEAK, LeakVerdict.TOO_EARLY)
    ]
    assert called(path, *verdicts) == LeakSeries.ALLOCATED


def test_the_hunt_names_the_line(path: Path) -> None:
    hunt = SnapshotRow(1, 0, 4, SnapshotReason.LEAK, "m", 12, 1, 1, 1, 1, 1, 1.0, None, None, "a.py:8 step")
    rows: list[Row] = [
        a_version(1, 1, SETTINGS),
        a_leak(LeakSeries.ALLOCATED, LeakVerdict.LEAK, "So."),
        hunt,
    ]
    leak = read_history(written(path, [1] * 5, rows), 6, SETTINGS, on_cpu=True).leak
    assert leak is not None
    assert leak.hunt == "a.py:8 step"


def test_a_rise_that_was_watched_when_memory_ran_out_is_told_as_less_certain(path: Path) -> None:
    rows: list[Row] = [a_version(1, 1, SETTINGS), a_leak(LeakSeries.ALLOCATED, LeakVerdict.WATCH, "So.")]
    leak = read_history(written(path, [1] * 5, rows), 6, SETTINGS, on_cpu=True).leak
    assert leak is not None
    assert not leak.is_certain


def test_a_rise_that_was_watched_and_levelled_off_is_not_told(path: Path) -> None:
    verdicts = LeakVerdict.WATCH, LeakVerdict.STEADY
    assert called(path, *(a_leak(LeakSeries.ALLOCATED, verdict, "So.") for verdict in verdicts)) is None


def test_the_usual_cause_stays_with_the_leak_unless_the_hunt_says_it() -> None:
    row = a_leak(LeakSeries.HOST, LeakVerdict.LEAK, "It grows.")._replace(cause="Usually Python objects.")
    sign = leak_sign([row], [], 100, on_cpu=True)
    assert sign is not None
    assert sign.cause == "Usually Python objects."
    row = a_leak(LeakSeries.ALLOCATED, LeakVerdict.LEAK, "It grows.")._replace(cause=BESIDE_TENSORS)
    hunt = SnapshotRow(
        1, 0, 90, SnapshotReason.LEAK, "m", 12, 1, 1, 1, 1, 1, 1.0, None, None, "It grew by 8."
    )
    hunted = leak_sign([row], [hunt], 100, on_cpu=True)
    assert hunted is not None
    assert (hunted.cause, hunted.hunt) == (None, "It grew by 8.")


def test_of_two_leaks_the_larger_one_is_blamed() -> None:
    small = a_leak(LeakSeries.ALLOCATED, LeakVerdict.LEAK, "It grows.")
    large = a_leak(LeakSeries.HOST, LeakVerdict.LEAK, "It grows.")._replace(bytes_per_step=50.0)
    sign = leak_sign([small, large], [], 100, on_cpu=True)
    assert sign is not None
    assert (sign.series, sign.leaked_bytes) == (LeakSeries.HOST, 100 + 50 * 99)


def test_a_leak_has_leaked_since_its_growth_began() -> None:
    early = a_leak(LeakSeries.ALLOCATED, LeakVerdict.LEAK, "It grows.")._replace(step=41)
    newer_half = early._replace(step=81, since_step=60, bytes_per_step=2.0)
    hunt = SnapshotRow(1, 0, 45, SnapshotReason.LEAK, "m", 12, 1, 1, 1, 1, 1, 1.0, None, None, "a.py:8 step")
    sign = leak_sign([early, newer_half], [hunt], 101, on_cpu=True)
    assert sign is not None
    assert "had grown since step 1, by 2 B per step since step 60." in sign.message
    assert (sign.since_step, sign.leaked_bytes) == (1, 100 + 2 * 60)
    assert sign.hunt == "a.py:8 step"


def test_a_leak_is_not_over_while_the_restarted_detector_could_not_detect_it() -> None:
    leak = a_leak(LeakSeries.ALLOCATED, LeakVerdict.LEAK, "It grows.")._replace(step=41)
    steady = a_leak(LeakSeries.ALLOCATED, LeakVerdict.STEADY, "Steady.")._replace(step=81, since_step=60)
    sign = leak_sign([leak, steady], [], 100, on_cpu=True)
    assert sign is not None
    assert sign.is_certain
    assert leak_sign([leak, steady._replace(detection_limit=2.0)], [], 100, on_cpu=True) is None

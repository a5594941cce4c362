"""Evidence for advice from a log: newest steps and settings, past, reverted and rejected changes."""

import json
from pathlib import Path

import pytest

from harness.analysis.advice import suggest
from harness.analysis.advice.host import MIN_SAMPLES
from harness.analysis.advice.inspection import MisplacedTensor, StepInspection, SyncLine
from harness.demo.machine import FACTS
from harness.records.memory import LeakSeries, MemorySampleRow
from harness.records.run import (
    AckRow,
    AmpMode,
    CommandKind,
    CommandRow,
    CommandState,
    DeviceSampleRow,
    EventKind,
    EventRow,
    HostSampleRow,
    SettingsRow,
    StepFlag,
)
from harness.settings import Settings
from harness.settings.declaration import MatmulPrecision
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.supervisor.advising import STEPS, read_evidence, speedups
from harness.supervisor.measuring import read_measurements
from tests.advice_factories import CPU
from tests.leak_factories import a_leak
from tests.measuring_factories import write_measured_log
from tests.store_factories import a_device_sample, a_run, steps


def a_version(version: int, step: int, command_id: str | None, **changed: object) -> SettingsRow:
    settings = Settings.model_validate(changed).model_dump_json()
    return SettingsRow(version, step, step, settings, json.dumps(changed), command_id)


def a_sample(seq: int, step: int, clock_mhz: float) -> DeviceSampleRow:
    return a_device_sample(seq, step, FACTS.uuid or "")._replace(sm_clock_mhz=clock_mhz)


def test_the_newest_steps_under_the_settings_in_effect_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    rows = [
        row._replace(step_ns=20 * row.step_ns, t_ns=20 * row.t_ns, settings_version=1 + (row.step >= 2_500))
        for row in steps(1, 3_000)
    ]
    change = a_version(2, 2_500, "a", batch_size=64)._replace(t_ns=rows[2_498].t_ns)
    with LogAppender(path, a_run()) as appender:
        appender.append(rows, [a_version(1, 1, None), change])
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS)
        assert run is not None
        assert (run.steps[0].step, run.steps[-1].step) == (2_500, 3_000)
        assert run.settings.batch_size == 64
        assert run.timing.examined == 501
        (past,) = run.past_changes
        assert (past.changed, past.step, past.is_undone) == ({"batch_size": 64}, 2_500, False)
        assert past.observed is not None
        assert past.observed.steps_after == 500
        assert past.has_failed
        assert read_evidence(reader, None) is None


def test_of_a_long_run_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 3_000), [a_version(1, 1, None)])
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS)
    assert run is not None
    assert (len(run.steps), run.steps[0].step) == (STEPS, 2_001)


def test_reverted_and_rejected_changes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    versions = [
        a_version(1, 1, None),
        a_version(2, 20, "a", batch_size=64),
        a_version(3, 22, None, batch_size=32),
        a_version(4, 40, "c", amp="bf16"),
    ]
    rejected = AckRow("b", CommandState.REJECTED, 30, 30, "No.")
    commands = [
        CommandRow("a", 1, CommandKind.SET, '{"batch_size": 64}', "test"),
        CommandRow("b", 2, CommandKind.SET, '{"compile": true}', "test"),
    ]
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 100), [*versions, rejected])
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS, commands, observed=lambda at: None)
    assert run is not None
    assert [(past.changed, past.is_undone) for past in run.past_changes] == [
        ({"batch_size": 64}, True),
        ({"batch_size": 32}, False),
        ({"amp": "bf16"}, False),
    ]
    assert [past.before for past in run.past_changes] == [
        {"batch_size": 32},
        {"batch_size": 64},
        {"amp": "off"},
    ]
    assert run.rejected == [{"compile": True}]


def test_the_clock_is_read_with_the_highest_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    samples = [a_sample(seq, 1 + 100 * seq, 1_980.0 if seq < 10 else 1_500.0) for seq in range(20)]
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 2_000), [a_version(1, 1, None), *samples])
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS)
    assert run is not None
    assert run.clocks == (1_500.0, 1_980.0)


def test_without_a_step_or_with_settings_of_another_version_there_is_no_evidence(tmp_path: Path) -> None:
    path, other = tmp_path / "empty.sqlite3", tmp_path / "other.sqlite3"
    with LogAppender(path, a_run()) as appender:
        appender.append([], [a_version(1, 1, None)])
    with LogAppender(other, a_run()) as appender:
        appender.append(steps(1, 50), [a_version(1, 1, None)._replace(settings='{"warp": 9}')])
    for log in (path, other):
        with LogReader(log) as reader:
            assert read_evidence(reader, FACTS) is None


def test_flagged_steps_are_read_and_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    rows = [row._replace(flags=int(StepFlag.WARM_UP)) if row.step < 10 else row for row in steps(1, 50)]
    with LogAppender(path, a_run()) as appender:
        appender.append(rows, [a_version(1, 1, None)])
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS)
    assert run is not None
    assert (len(run.steps), len(run.settled)) == (50, 41)


def test_a_speedup_is_the_ratio_of_the_peaks() -> None:
    tf32 = Settings(matmul_precision=MatmulPrecision.HIGH)
    assert speedups(tf32, FACTS)["amp", "bf16"] > 1.99
    assert speedups(Settings(), FACTS)["matmul_precision", "high"] > 7
    assert speedups(Settings(amp=AmpMode.BF16), FACTS)["amp", "bf16"] == 1.0
    assert speedups(Settings(), FACTS._replace(name="Some GPU")) == {}


def an_inspection(step: int, detail: str) -> EventRow:
    return EventRow(step, step, EventKind.INSPECTION, "info", "inspection", "…", detail, None)


def test_the_newest_inspection_under_the_settings_in_effect_is_evidence(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    line = {"site": "model.py:12 forward", "code": "loss.item()", "calls": 4}
    one = {"what": "buffer", "name": "positions", "device": "cpu", "size_bytes": 12}
    detail = json.dumps({"first": 4, "steps": 2, "syncs": [line], "elsewhere": [one]})
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 100), [a_version(1, 1, None), an_inspection(5, detail)])
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS)
    assert run is not None
    assert run.inspection == StepInspection(4, 2, (SyncLine(**line),), (MisplacedTensor(**one),))  # type: ignore[arg-type]  # as JSON has it
    later = tmp_path / "later.sqlite3"
    versions = [a_version(1, 1, None), a_version(2, 90, None, batch_size=64)]
    with LogAppender(later, a_run()) as appender:
        appender.append(steps(1, 100), [*versions, an_inspection(5, detail)])
    with LogReader(later) as reader:
        run = read_evidence(reader, FACTS)
    assert run is not None
    assert run.inspection is None


def test_an_unreadable_inspection_is_no_evidence(tmp_path: Path) -> None:
    for number, detail in enumerate(("", "[]", "{}", '{"steps": 2}')):
        path = tmp_path / f"log{number}.sqlite3"
        with LogAppender(path, a_run()) as appender:
            appender.append(steps(1, 100), [a_version(1, 1, None), an_inspection(5, detail)])
        with LogReader(path) as reader:
            run = read_evidence(reader, FACTS)
        assert run is not None
        assert run.inspection is None


def test_steps_with_a_memory_sample_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    nothing: dict[str, int | None] = dict.fromkeys(MemorySampleRow._fields)
    samples = [
        MemorySampleRow(**nothing | {"seq": seq, "t_ns": seq, "step": step})  # type: ignore[arg-type]  # None fits
        for seq, step in enumerate((19, 40, 60))
    ]
    with LogAppender(path, a_run()) as appender:
        appender.append(
            steps(1, 100), [a_version(1, 1, None), a_version(2, 20, "a", batch_size=64), *samples]
        )
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS)
    assert run is not None
    assert run.sampled_steps & {row.step for row in run.steps} == {20, 40, 41, 60, 61}


def test_host_samples_and_the_figures_of_the_start_are_read_with_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    samples = [HostSampleRow(seq, seq, seq * 10, 90.0, 60.0, *(None,) * 5) for seq in range(10)]
    recorded = a_run()._replace(versions='{"torch_threads": 2, "process_limit_bytes": 600}')
    with LogAppender(path, recorded) as appender:
        appender.append(
            steps(1, 100), [a_version(1, 1, None), a_version(2, 50, "a", batch_size=64), *samples]
        )
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS)
    assert run is not None
    assert [one.seq for one in run.host_samples] == [5, 6, 7, 8, 9]
    assert (run.torch_threads, run.process_limit_bytes) == (2, 600)


@pytest.mark.slow
def test_host_samples_of_20_s_are_read_with_steps_of_a_few_milliseconds(tmp_path: Path) -> None:
    rows = [row._replace(step_ns=2 * 10**6, t_ns=row.step * 2 * 10**6) for row in steps(1, 15_000)]
    samples = [HostSampleRow(s, s * 10**9, 500 * s, 98.0, 60.0, *(None,) * 5) for s in range(1, 31)]
    for changed, count in ((1, 20), (14_000, 3)):
        path = tmp_path / f"{changed}.sqlite3"
        with LogAppender(path, a_run()) as appender:
            change = a_version(2, changed, "a", batch_size=64)
            appender.append(rows, [a_version(1, 1, None), change, *samples])
        with LogReader(path) as reader:
            run = read_evidence(reader, CPU, observed=lambda at: None)
        assert run is not None
        assert len(run.host_samples) == count
        assert ("busy-host" in {advice.rule for advice in suggest(run)}) is (count >= MIN_SAMPLES)


def test_a_log_without_host_samples_and_threads_gives_none(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 100), [a_version(1, 1, None)])
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS)
    assert run is not None
    assert (list(run.host_samples), run.torch_threads, run.process_limit_bytes) == ([], None, None)


def test_a_measurement_without_a_gain_is_a_change_that_failed(tmp_path: Path) -> None:
    for ratio, has_failed in ((1.0, True), (0.8, False)):
        path = tmp_path / f"{ratio}.sqlite3"
        write_measured_log(path, ratio)
        with LogReader(path) as reader:
            evidence = read_evidence(reader, FACTS, measured=read_measurements(reader))
        assert evidence is not None
        (past,) = [past for past in evidence.past_changes if past.changed]
        assert (past.changed, past.before) == ({"amp": "bf16"}, {"amp": "off"})
        assert past.has_failed is has_failed


def test_the_newest_leak_verdicts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 300), [a_version(1, 1, None)])
        appender.append([], [a_leak()._replace(series=LeakSeries.WORKERS)])
    with LogReader(path) as reader:
        run = read_evidence(reader, FACTS)
    assert run is not None
    assert run.workers_leak == a_leak()._replace(series=LeakSeries.WORKERS)

"""What is read from a log before advice is given: the newest settings, what was tried, undone and refused."""

import json
from pathlib import Path

from harness.analysis.advice.inspected import Elsewhere, Inspected, Line
from harness.demo.machine import FACTS
from harness.memory_records import MemorySampleRow
from harness.records import (
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
from harness.setting import MatmulPrecision
from harness.settings import Settings
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.supervisor.advising import STEPS, read_known, speedups
from tests.store_factories import a_device_sample, a_run, steps


def a_version(version: int, step: int, command_id: str | None, **changed: object) -> SettingsRow:
    settings = Settings.model_validate(changed).model_dump_json()
    return SettingsRow(version, step, step, settings, json.dumps(changed), command_id)


def a_sample(seq: int, step: int, clock_mhz: float) -> DeviceSampleRow:
    return a_device_sample(seq, step, FACTS.uuid or "")._replace(sm_clock_mhz=clock_mhz)


def test_the_newest_steps_under_the_settings_in_effect_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    rows = [
        row._replace(step_ns=20 * row.step_ns, t_ns=20 * row.t_ns, settings_version=1 + (row.step >= 2_500))
        for row in steps(1, 3_000)
    ]
    change = a_version(2, 2_500, "a", batch_size=64)._replace(t_ns=rows[2_498].t_ns)
    with LogAppender(path, a_run()) as appender:
        appender.append(rows, [a_version(1, 1, None), change])
    with LogReader(path) as reader:
        known = read_known(reader, FACTS)
        assert known is not None
        assert (known.steps[0].step, known.steps[-1].step) == (2_500, 3_000)
        assert known.settings.batch_size == 64
        assert known.timing.looked_at == 501
        (tried,) = known.tried
        assert (tried.changed, tried.step, tried.is_undone) == ({"batch_size": 64}, 2_500, False)
        assert tried.observed is not None
        assert tried.observed.steps_after == 500
        assert tried.has_failed
        assert read_known(reader, None) is None


def test_of_a_long_run_only_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 3_000), [a_version(1, 1, None)])
    with LogReader(path) as reader:
        known = read_known(reader, FACTS)
    assert known is not None
    assert (len(known.steps), known.steps[0].step) == (STEPS, 2_001)


def test_what_the_run_took_back_and_rejected_is_remembered(tmp_path: Path) -> None:
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
        known = read_known(reader, FACTS, commands, observed=lambda at: None)
    assert known is not None
    assert [(tried.changed, tried.is_undone) for tried in known.tried] == [
        ({"batch_size": 64}, True),
        ({"batch_size": 32}, False),
        ({"amp": "bf16"}, False),
    ]
    assert [tried.before for tried in known.tried] == [{"batch_size": 32}, {"batch_size": 64}, {"amp": "off"}]
    assert known.refused == [{"compile": True}]


def test_the_clock_is_that_of_these_steps_beside_the_highest_of_the_run(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    samples = [a_sample(seq, 1 + 100 * seq, 1_980.0 if seq < 10 else 1_500.0) for seq in range(20)]
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 2_000), [a_version(1, 1, None), *samples])
    with LogReader(path) as reader:
        known = read_known(reader, FACTS)
    assert known is not None
    assert known.clocks == (1_500.0, 1_980.0)


def test_without_a_step_or_with_settings_of_another_version_nothing_is_known(tmp_path: Path) -> None:
    path, other = tmp_path / "empty.sqlite3", tmp_path / "other.sqlite3"
    with LogAppender(path, a_run()) as appender:
        appender.append([], [a_version(1, 1, None)])
    with LogAppender(other, a_run()) as appender:
        appender.append(steps(1, 50), [a_version(1, 1, None)._replace(settings='{"warp": 9}')])
    for found in (path, other):
        with LogReader(found) as reader:
            assert read_known(reader, FACTS) is None


def test_flagged_steps_are_read_and_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    rows = [row._replace(flags=int(StepFlag.WARM_UP)) if row.step < 10 else row for row in steps(1, 50)]
    with LogAppender(path, a_run()) as appender:
        appender.append(rows, [a_version(1, 1, None)])
    with LogReader(path) as reader:
        known = read_known(reader, FACTS)
    assert known is not None
    assert (len(known.steps), len(known.settled)) == (50, 41)


def test_a_peak_that_is_twice_as_high_is_twice_as_fast_at_best() -> None:
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
    found = json.dumps({"first": 4, "steps": 2, "syncs": [line], "elsewhere": [one]})
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 100), [a_version(1, 1, None), an_inspection(5, found)])
    with LogReader(path) as reader:
        known = read_known(reader, FACTS)
    assert known is not None
    assert known.inspected == Inspected(4, 2, (Line(**line),), (Elsewhere(**one),))  # type: ignore[arg-type]  # as JSON has it
    later = tmp_path / "later.sqlite3"
    versions = [a_version(1, 1, None), a_version(2, 90, None, batch_size=64)]
    with LogAppender(later, a_run()) as appender:
        appender.append(steps(1, 100), [*versions, an_inspection(5, found)])
    with LogReader(later) as reader:
        known = read_known(reader, FACTS)
    assert known is not None
    assert known.inspected is None


def test_an_inspection_that_cannot_be_read_is_no_evidence(tmp_path: Path) -> None:
    for number, detail in enumerate(("", "[]", "{}", '{"steps": 2}')):
        path = tmp_path / f"log{number}.sqlite3"
        with LogAppender(path, a_run()) as appender:
            appender.append(steps(1, 100), [a_version(1, 1, None), an_inspection(5, detail)])
        with LogReader(path) as reader:
            known = read_known(reader, FACTS)
        assert known is not None
        assert known.inspected is None


def test_steps_in_which_memory_was_sampled_are_known(tmp_path: Path) -> None:
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
        known = read_known(reader, FACTS)
    assert known is not None
    assert known.sampled_steps & {row.step for row in known.steps} == {20, 40, 41, 60, 61}


def test_the_host_and_torchs_threads_are_read_with_the_steps_they_belong_to(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    samples = [HostSampleRow(seq, seq, seq * 10, 90.0, 60.0, *(None,) * 5) for seq in range(10)]
    run = a_run()._replace(versions='{"torch_threads": 2}')
    with LogAppender(path, run) as appender:
        appender.append(
            steps(1, 100), [a_version(1, 1, None), a_version(2, 50, "a", batch_size=64), *samples]
        )
    with LogReader(path) as reader:
        known = read_known(reader, FACTS)
    assert known is not None
    assert [one.seq for one in known.hosts] == [5, 6, 7, 8, 9]
    assert known.torch_threads == 2


def test_a_log_that_has_no_host_and_no_threads_gives_none(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(1, 100), [a_version(1, 1, None)])
    with LogReader(path) as reader:
        known = read_known(reader, FACTS)
    assert known is not None
    assert (list(known.hosts), known.torch_threads) == ([], None)

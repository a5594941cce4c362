"""Memory that really runs out, on the CPU under a cap, and what each policy makes of it in one process."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.oom.report import OomReport, OomVerdict, report_from_json
from harness.errors import OUT_OF_MEMORY_CODE
from harness.records.run import CommandKind, CommandState, EventKind, EventRow, RunState, Severity, StepFlag
from harness.run import EXIT_OK
from harness.store.control import ControlLog
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.e2e.test_run_process import Child, a_child
from tests.store_factories import step_numbers
from tests.train_factories import a_command

pytestmark = pytest.mark.slow
TOO_LARGE = 2001
LIGHT: dict[str, Any] = {
    "model": "cnn",
    "data": "shapes",
    "image_size": 64,
    "batch_size": 8,
    "memory_cap_gib": 0.35,
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def request_too_much(child: Child, batch_size: int = TOO_LARGE) -> None:
    child.until_step(10)
    with ControlLog(child.folder) as control:
        control.send(a_command(payload=json.dumps({"batch_size": batch_size}), command_id="huge"))


def until_recovered(child: Child) -> EventRow:
    events: list[EventRow] = child.until(
        lambda log: [event for _, event in log.events() if event.kind == EventKind.OOM_RECOVERED]
    )
    return events[0]


def stop(child: Child, steps_later: int = 10) -> None:
    child.until_step(child.read(lambda log: log.extent().last) + steps_later)
    child.request(CommandKind.STOP, command_id="stop")
    assert child.end() == EXIT_OK, child.output


def reports(child: Child) -> list[OomReport]:
    rows = child.read(lambda log: log.memory.oom_reports())
    return [report_from_json(row.report) for row in rows]


def assert_level_is_back(event: EventRow) -> None:
    detail = json.loads(event.detail)
    assert detail["is_back"] is True, detail
    assert detail["level_after"] <= detail["level_before"] + detail["tolerance"]


def test_a_change_that_was_too_much_is_rolled_back_and_training_goes_on(home: Home) -> None:
    with a_child(home, is_fresh=True, **LIGHT) as child:
        request_too_much(child)
        recovered = until_recovered(child)
        stop(child)
        (failure,) = child.events(EventKind.OOM)
        (report,) = reports(child)
    with LogReader(child.folder.log) as log:
        log.check()
        rows, history, acks = log.last_steps(10_000), log.settings_history(), log.acks()
        steps = step_numbers(log)
    assert steps == list(range(1, len(steps) + 1))
    assert (failure.severity, failure.command_id) == (Severity.WARNING, "huge")
    assert failure.message == report.sentence
    assert_level_is_back(failure)
    assert recovered.step == failure.step
    assert [json.loads(row.changed) for row in history[1:]] == [{"batch_size": TOO_LARGE}, {"batch_size": 8}]
    assert [ack.state for ack in acks if ack.command_id == "huge"] == [
        CommandState.APPLIED,
        CommandState.ROLLED_BACK,
    ]
    after = [row for row in rows if row.step >= failure.step]
    assert {row.samples for row in after} == {8}
    assert all(row.flags == StepFlag.TRANSITION for row in after[:5])
    assert report.verdict is OomVerdict.CAP
    assert report.facts.change is not None
    assert report.facts.change.command_id == "huge"
    assert report.facts.change.steps_ago == 0
    assert len(report.facts.steps) == failure.step - 1
    (text,) = child.folder.captures.iterdir()
    assert text.name == f"oom-step-{failure.step}.txt"
    assert text.stat().st_mode & 0o777 == 0o600
    assert str(Path.home()) not in text.read_text()
    assert report.why in " ".join(text.read_text().split())


@pytest.mark.long
def test_halving_keeps_the_effective_batch_and_goes_on(home: Home) -> None:
    with a_child(home, is_fresh=True, **LIGHT, oom_policy="halve", oom_retries=5) as child:
        request_too_much(child, 1000)
        until_recovered(child)
        stop(child, 1)
        failures = child.events(EventKind.OOM)
        settings = json.loads(child.read(lambda log: log.settings_history())[-1].settings)
        (row,) = child.read(lambda log: log.steps(failures[0].step, failures[0].step))
    assert settings["batch_size"] * settings["grad_accumulation"] == 1000
    assert settings["batch_size"] == 1000 // 2 ** len(failures)
    assert row.samples == 1000
    assert "The effective batch stays 1,000." in failures[0].message
    for failure in failures:
        assert_level_is_back(failure)


@pytest.mark.long
def test_batches_are_left_out_until_no_recovery_is_left(home: Home) -> None:
    with a_child(home, is_fresh=True, **LIGHT, oom_policy="skip", oom_retries=2) as child:
        request_too_much(child)
        assert child.end() == OUT_OF_MEMORY_CODE, child.output
        *recovered, last = child.events(EventKind.OOM)
        state, message = child.state, child.read(lambda log: log.run().state_message)
    assert state == RunState.OUT_OF_MEMORY
    assert [event.severity for event in (*recovered, last)] == ["warning", "warning", "error"]
    assert len({event.step for event in (*recovered, last)}) == 1
    for event in recovered:
        assert_level_is_back(event)
        assert "The batch is skipped;" in event.message
    assert last.message == message
    assert "No recovery is left (oom_retries); the run ends. Recoveries before: 2. It failed " in message
    names = {path.name for path in child.folder.captures.iterdir()}
    assert names == {f"oom-step-{last.step}{number}.txt" for number in ("", "-2", "-3")}


@pytest.mark.long
def test_with_stop_the_first_failure_is_the_end(home: Home) -> None:
    with a_child(home, is_fresh=True, **LIGHT, oom_policy="stop") as child:
        request_too_much(child)
        assert child.end() == OUT_OF_MEMORY_CODE, child.output
        (failure,) = child.events(EventKind.OOM)
        (report,) = reports(child)
    assert failure.severity == Severity.ERROR
    assert report.outcome == "The run ends because of oom_policy=stop."
    assert_level_is_back(failure)


@pytest.mark.long
def test_without_a_change_before_it_there_is_nothing_to_roll_back(home: Home) -> None:
    with a_child(home, is_fresh=True, **LIGHT | {"batch_size": TOO_LARGE}) as child:
        assert child.end() == OUT_OF_MEMORY_CODE, child.output
        (failure,) = child.events(EventKind.OOM)
    assert "there is no recent change of settings to roll back" in failure.message
    assert "oom_policy=halve" in failure.message

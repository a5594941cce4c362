"""The watch over a loop that is not ours: it is given a model, an optimizer, a device and step boundaries."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

from harness.analysis.oom.report import report_from_json
from harness.device.testing.device import FakeDevice
from harness.records.memory import SnapshotReason
from harness.records.run import CommandKind, CommandRow, CommandState, EventKind, RunState
from harness.store.folder import RunFolder
from harness.store.reader import LogReader
from harness.watch.boundary import Boundary, StepAction
from harness.watch.context import RunContext
from harness.watch.inbox import Inbox
from harness.watch.reference import PERIOD_NS
from tests.plain_factories import (
    PlainTraining,
    a_plain_step,
    a_plain_training,
    a_watch,
    batches,
    train_watched,
    trained,
)
from tests.train_factories import a_command

STEPS = 60


def a_log(folder: Path) -> LogReader:
    return LogReader(RunFolder(folder).log)


def test_steps_losses_memory_and_outcome_of_any_loop_stand_in_the_log(tmp_path: Path) -> None:
    watch = trained(tmp_path, a_plain_training(max_steps=STEPS))
    bare = a_plain_training()
    losses = [a_plain_step(bare, batch) for batch in islice(batches(), STEPS)]
    with a_log(tmp_path) as log:
        run, rows = log.run(), log.steps(1, STEPS)
    assert (run.state, watch.state) == (RunState.FINISHED, RunState.FINISHED)
    assert [row.step for row in rows] == list(range(1, STEPS + 1))
    assert [row.loss for row in rows] == losses
    assert all(row.samples == 16 and row.tokens is None for row in rows)
    assert all(row.rss_bytes for row in rows)
    assert all(row.step_ns >= row.forward_ns + row.backward_ns + row.optimizer_ns > 0 for row in rows)


def test_the_speed_of_the_machine_is_measured_beside_the_steps(tmp_path: Path) -> None:
    trained(tmp_path, a_plain_training(max_steps=STEPS))
    with a_log(tmp_path) as log:
        work = log.reference.steps(1, STEPS)
        last_ns = log.steps(STEPS, STEPS)[0].t_ns
    assert work
    assert all(0 < took_ns < PERIOD_NS for _, took_ns in work)
    assert len(work) <= 1 + last_ns / PERIOD_NS


@pytest.mark.slow
def test_nothing_of_ours_is_imported_by_it() -> None:
    program = """
import sys
import harness.watch.watch
ours = ("harness.train", "harness.models", "harness.data", "harness.run")
print([name for name in sys.modules if name.startswith(ours)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_stop_ends_any_loop_before_its_next_step(tmp_path: Path) -> None:
    def stop(step: int, inbox: Inbox) -> None:
        if step == 10:
            inbox.stop("Stopped by SIGTERM.")

    watch = trained(tmp_path, a_plain_training(), stop)
    assert watch.state is RunState.STOPPED
    with a_log(tmp_path) as log:
        assert (log.run().state_message, log.extent().steps) == ("Stopped by SIGTERM.", 9)


def test_snapshots_of_any_model_are_taken_on_request(tmp_path: Path) -> None:
    def request(step: int, inbox: Inbox) -> None:
        if step == 10:
            inbox.put(a_command(CommandKind.SNAPSHOT, '{"steps": 2}'))

    trained(tmp_path, a_plain_training(max_steps=STEPS), request)
    with a_log(tmp_path) as log:
        snapshots, (ack,) = log.memory.snapshots(), log.acks()
    assert [row.reason for row in snapshots] == [SnapshotReason.START, SnapshotReason.REQUESTED]
    assert ack.state == CommandState.APPLIED


class LearningRate(StepAction):
    """Changes that the loop's owner allows a watch."""

    commands = frozenset({CommandKind.SET})

    def __init__(self, context: RunContext, training: PlainTraining) -> None:
        self._context = context
        self._training = training

    def request(self, command: CommandRow, boundary: Boundary) -> None:
        for group in self._training.optimizer.param_groups:
            group["lr"] = json.loads(command.payload)["learning_rate"]
        boundary.changed(boundary.step)
        self._context.answer(command.command_id, CommandState.APPLIED, boundary.step, "Changed.")


def test_what_can_be_changed_is_up_to_the_loops_owner(tmp_path: Path) -> None:
    training, inbox = a_plain_training(max_steps=STEPS), Inbox()
    inbox.put(a_command(payload='{"learning_rate": 0.25}'))
    with (
        a_watch(tmp_path, training, inbox) as watch,
        watch.observe(training, [LearningRate(watch.context, training)]) as steps,
    ):
        train_watched(training, steps)
    assert training.optimizer.param_groups[0]["lr"] == 0.25
    with a_log(tmp_path) as log:
        assert [ack.state for ack in log.acks()] == [CommandState.APPLIED]


def test_a_change_that_nobody_carries_out_is_rejected(tmp_path: Path) -> None:
    def request(step: int, inbox: Inbox) -> None:
        if step == 10:
            inbox.put(a_command(payload='{"learning_rate": 0.25}'))

    trained(tmp_path, a_plain_training(max_steps=STEPS), request)
    with a_log(tmp_path) as log:
        assert [ack.state for ack in log.acks()] == [CommandState.REJECTED]


def test_an_error_of_any_loop_is_recorded_and_goes_on_up(tmp_path: Path) -> None:
    def fail(step: int, _inbox: Inbox) -> None:
        if step == 10:
            raise ValueError("shapes do not fit")

    with pytest.raises(ValueError, match="shapes"):
        trained(tmp_path, a_plain_training(), fail)
    with a_log(tmp_path) as log:
        assert log.run().state == RunState.FAILED
        assert log.extent().steps == 9


def test_out_of_memory_in_any_loop_is_explained_and_goes_on_up(tmp_path: Path) -> None:
    def run_out(step: int, _inbox: Inbox) -> None:
        if step == 10:
            torch.empty(1 << 50, dtype=torch.uint8)

    with pytest.raises(RuntimeError, match="allocate"):
        trained(tmp_path, a_plain_training(), run_out)
    with a_log(tmp_path) as log:
        assert log.run().state == RunState.OUT_OF_MEMORY
        (event,) = (event for _, event in log.events() if event.kind == EventKind.OOM)
        (row,) = log.memory.oom_reports()
    report = report_from_json(row.report)
    assert event.step == report.facts.step == 10
    assert "tests/unit/test_watch.py" in (report.facts.request.site or "")


def test_what_fails_before_the_first_step_is_recorded_too(tmp_path: Path) -> None:
    training = a_plain_training()
    with pytest.raises(ValueError, match="no data"), a_watch(tmp_path, training):
        raise ValueError("no data")
    with a_log(tmp_path) as log:
        assert log.run().state == RunState.FAILED


def test_a_training_is_left_as_it_was(tmp_path: Path) -> None:
    training = a_plain_training(max_steps=3)
    forward, step = training.model.forward, training.optimizer.step
    trained(tmp_path, training)
    assert (training.model.forward, training.optimizer.step) == (forward, step)


def test_a_memory_cap_ends_with_the_watch(tmp_path: Path) -> None:
    training, device = a_plain_training(max_steps=3), FakeDevice()
    with a_watch(tmp_path, training, device=device) as watch, watch.observe(training) as steps:
        device.cap_memory(1 << 30)
        train_watched(training, steps)
    assert device.limit_bytes() is None


@pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyboardInterrupt])
def test_a_memory_cap_ends_with_a_watch_that_an_error_ends(
    error: type[BaseException], tmp_path: Path
) -> None:
    training, device = a_plain_training(), FakeDevice()

    def train() -> None:
        with a_watch(tmp_path, training, device=device) as watch, watch.observe(training):
            device.cap_memory(1 << 30)
            raise error("no more")

    with pytest.raises(error, match="no more"):
        train()
    assert device.limit_bytes() is None

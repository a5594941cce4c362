"""Stops of a run of the public package: where they end loops, and what stays of them."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import pytest

import stepscope
from harness.records.run import CommandKind, RunState
from tests.api_factories import ENOUGH_STEPS, SmallTraining, log_of, send, watch
from tests.attach_factories import attached, recorded
from tests.train_factories import a_command


@pytest.fixture
def training() -> SmallTraining:
    return SmallTraining()


def _endless(training: SmallTraining) -> Iterator[Any]:
    return islice(cycle(list(training.loader)), ENOUGH_STEPS)


def _epochs(training: SmallTraining, run: stepscope.Run) -> list[int]:
    """The steps of each of three epochs."""
    return [len(training.train(run.steps(training.loader))) for _ in range(3)]


def test_after_a_stop_later_epochs_are_empty_and_the_run_stays_stopped(
    training: SmallTraining, tmp_path: Path
) -> None:
    with watch(training, tmp_path) as run:
        send(tmp_path, CommandKind.STOP)
        training.train(run.steps(_endless(training)))
        assert (_epochs(training, run), run.is_stopped) == ([0, 0, 0], True)
    assert (_epochs(training, run), run.is_stopped) == ([0, 0, 0], True)


def test_an_error_after_a_stop_is_recorded_with_the_stop(training: SmallTraining, tmp_path: Path) -> None:
    with attached(tmp_path) as watched:
        watched.session.inbox.put(a_command(CommandKind.STOP, "{}"))
        with suppress(KeyboardInterrupt):
            training.train(training.loader)
        watched.session.end(ZeroDivisionError("division by zero"))
    run = recorded(watched.folder).run
    assert (run.state, run.state_message) == (
        RunState.FAILED,
        "ZeroDivisionError: division by zero. The error came after the run was to end: "
        "Stopped by request from the test.",
    )


@pytest.mark.long
def test_after_the_last_step_later_epochs_are_empty(training: SmallTraining, tmp_path: Path) -> None:
    run = watch(training, tmp_path)
    steps = ENOUGH_STEPS // 20
    send(tmp_path, CommandKind.SET, max_steps=steps)
    training.train(run.steps(_endless(training)))
    assert (_epochs(training, run), run.is_stopped) == ([0, 0, 0], True)
    with log_of(tmp_path) as log:
        assert (log.run().state, log.last_steps(1)[0].step) == (RunState.FINISHED, steps)


@pytest.mark.parametrize("error", [None, ValueError("no data"), KeyboardInterrupt()])
def test_a_run_that_ended_otherwise_is_not_stopped(
    training: SmallTraining, tmp_path: Path, error: BaseException | None
) -> None:
    run = watch(training, tmp_path)
    training.train(run.steps(training.loader))
    run.close(error)
    assert (_epochs(training, run), run.is_stopped) == ([8, 8, 8], False)


def test_a_loop_within_a_loop_leaves_the_stop_to_the_outer_one(
    training: SmallTraining, tmp_path: Path
) -> None:
    run = watch(training, tmp_path)
    for number, batch in enumerate(run.steps(_endless(training))):
        if number == 1:
            assert list(run.steps([1, 2])) == [1, 2]
            send(tmp_path, CommandKind.STOP)
        training.step(batch)
        if run.is_stopped:
            assert list(run.steps([1, 2])) == []
            run.log(after_the_stop=number)
    assert run.is_stopped
    with log_of(tmp_path) as log:
        assert log.run().state == RunState.STOPPED
        assert log.script.scalar_names() == ["after_the_stop"]


def test_a_loop_over_the_steps_does_not_undo_handle_stop(training: SmallTraining, tmp_path: Path) -> None:
    with watch(training, tmp_path) as run:
        run.handle_stop()
        training.train(run.steps(training.loader))
        send(tmp_path, CommandKind.STOP)
        for step in count():
            training.train()
            assert step < ENOUGH_STEPS
            if run.is_stopped:
                break
    assert run.is_stopped

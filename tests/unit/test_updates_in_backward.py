"""Optimizers that step within the backward pass, as hooks of their parameters have them do."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest
from torch.utils._python_dispatch import _get_current_dispatch_mode

from harness.attach import entries
from harness.attach.ending import ScriptStopped
from harness.attach.tracker import StepTracker
from harness.records.run import CommandKind, CommandState, RunState
from harness.watch.timing import StepTimer, phases_ns
from tests.backward_factories import BackwardUpdates
from tests.session_factories import a_session


@pytest.fixture(params=[True, False], ids=["one optimizer", "one per parameter"])
def script(request: pytest.FixtureRequest) -> Iterator[BackwardUpdates]:
    with closing(BackwardUpdates(is_one=request.param)) as updates:
        yield updates


def test_a_step_ends_with_its_backward_pass(tmp_path: Path, script: BackwardUpdates) -> None:
    with a_session(tmp_path) as attached:
        script.steps(30)
        assert attached.guard.is_on
    with attached.log() as log:
        rows = log.steps(1, 100)
    assert [row.step for row in rows] == list(range(1, 31))
    for row in rows[5:]:
        assert row.optimizer_ns > 0
        assert row.backward_ns > 0
        assert row.forward_ns + row.backward_ns + row.optimizer_ns <= row.step_ns


def test_what_follows_an_update_within_the_backward_pass_is_backward() -> None:
    timer = StepTimer(iter([0, 10, 20, 30, 50, 60]).__next__)
    tracker = StepTracker(timer, copies=False)
    tracker.backward_began()
    tracker.update_began()
    tracker.update_ended()
    states = [tracker.is_in_backward]
    tracker.backward_ended()
    states.append(tracker.is_in_backward)
    assert states == [True, False]
    _, _, backward_ns, optimizer_ns = phases_ns(tracker.end())[1:]
    assert (backward_ns, optimizer_ns) == (10 + 20, 10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [CommandKind.PROFILE, CommandKind.SNAPSHOT])
def test_a_capture_begins_and_ends_between_two_backward_passes(
    tmp_path: Path, script: BackwardUpdates, kind: CommandKind
) -> None:
    with a_session(tmp_path) as attached:
        script.steps(8)
        request = attached.ask(kind)
        script.steps(20)
        assert _get_current_dispatch_mode() is None
        assert attached.guard.is_on
    answer = attached.answer(request)
    assert answer.state == CommandState.APPLIED, answer.message


def test_a_stop_is_raised_after_the_backward_pass(tmp_path: Path, script: BackwardUpdates) -> None:
    with a_session(tmp_path) as attached:
        script.steps(8)
        attached.session.inbox.stop("Stopped by a test.")
        with pytest.raises(ScriptStopped):
            script.steps(8)
    with attached.log() as log:
        assert log.run().state == RunState.STOPPED
        assert [row.step for row in log.steps(1, 100)] == list(range(1, 10))
    assert all(weight.grad is None or not weight.grad.any() for weight in script.model.parameters())


def in_another_thread(update: Callable[[], object]) -> None:
    thread = Thread(target=update)
    thread.start()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("is_autograds", [True, False])
def test_updates_by_a_thread_of_autograd_belong_to_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: BackwardUpdates, is_autograds: bool
) -> None:
    """As on a GPU; on the CPU autograd has no thread of its own, so a thread here says that it is one."""
    script.run = in_another_thread
    monkeypatch.setattr(entries, "computes_gradients", lambda: is_autograds)
    with a_session(tmp_path) as attached:
        script.steps(30)
        assert attached.guard.is_on
    warnings = [event.label for event in attached.events() if event.label == "second training thread"]
    with attached.log() as log:
        rows = log.steps(1, 100)
    if is_autograds:
        assert not warnings
        assert [row.step for row in rows] == list(range(1, 31))
        assert all(row.optimizer_ns for row in rows)
    else:
        assert warnings
        assert not rows

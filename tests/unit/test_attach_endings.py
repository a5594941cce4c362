"""The ends of scripts under watch, and what people request of them."""

import gc
import shutil
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import stepscope
from harness.attach import session
from harness.attach.discovery import live_optimizers
from harness.attach.ending import ScriptExitError, ScriptStopped, ending_of
from harness.attach.launch import Script, origin_of
from harness.records.run import CommandKind, EventKind, RunState
from harness.settings import Settings
from harness.store.home import Home
from harness.supervisor import supervisor
from harness.supervisor.escalation import EscalationStage, Patience
from tests.attach_factories import Attached, Recorded, attached, ran_watched, recorded, steps_of
from tests.train_factories import a_command


class Loop:
    """A training loop of somebody else's; `before` is called before each step."""

    def __init__(self) -> None:
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.step = 0

    def run(self, steps: int, before: Callable[[int], None] = lambda _step: None) -> None:
        for _ in range(steps):
            before(self.step + 1)
            loss = self.model(torch.ones(2, 4)).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1


def requesting(watched: Attached, kind: CommandKind, at: int) -> Callable[[int], None]:
    def before(step: int) -> None:
        if step == at:
            watched.session.inbox.put(a_command(kind, "{}"))

    return before


def ended_by(home: Path, script: Callable[[Attached], None]) -> tuple[BaseException | None, Recorded]:
    """Run a script that may raise: its error, and the log."""
    with attached(home) as watched:
        try:
            script(watched)
        except (KeyboardInterrupt, ValueError) as error:
            watched.session.end(error)
            return error, recorded(watched.folder)
    return None, recorded(watched.folder)


def test_a_stop_raises_keyboard_interrupt_after_the_step_so_that_clean_up_runs(tmp_path: Path) -> None:
    loop, cleaned_up = Loop(), []

    def script(watched: Attached) -> None:
        try:
            loop.run(20, requesting(watched, CommandKind.STOP, 8))
        finally:
            cleaned_up.append(loop.step)

    error, log = ended_by(tmp_path, script)
    assert isinstance(error, KeyboardInterrupt)
    assert cleaned_up == [7]  # The eighth update was made; the script's own counter comes after it.
    assert (log.run.state, log.run.state_message) == (RunState.STOPPED, "Stopped by request from the test.")
    assert len(log.steps) == 8


def test_a_stop_before_the_first_step_ends_the_script_with_that_step(tmp_path: Path) -> None:
    loop = Loop()

    def script(watched: Attached) -> None:
        watched.session.inbox.put(a_command(CommandKind.STOP, "{}"))
        loop.run(20)

    error, log = ended_by(tmp_path, script)
    assert isinstance(error, KeyboardInterrupt)
    assert (log.run.state, log.run.state_message) == (RunState.STOPPED, "Stopped by request from the test.")
    assert [len(log.steps), [event.kind for event in log.events if event.kind == EventKind.WARNING]] == [
        1,
        [],
    ]


def test_a_stop_that_the_script_catches_to_end_well_is_a_stop(tmp_path: Path) -> None:
    loop = Loop()
    with attached(tmp_path) as watched:
        try:
            loop.run(20, requesting(watched, CommandKind.STOP, 8))
        except KeyboardInterrupt:
            with torch.no_grad():
                loop.model.eval()(torch.ones(2, 4))
    assert recorded(watched.folder).run.state == RunState.STOPPED


@pytest.mark.parametrize(
    ("at", "state", "message"),
    [
        (8, RunState.STOPPED, "Stopped by request from the test."),
        (30, RunState.FAILED, "The script exited with 1."),
    ],
)
def test_a_script_that_exits_with_a_code_because_it_was_stopped_is_stopped(
    tmp_path: Path, at: int, state: RunState, message: str
) -> None:
    loop = Loop()
    with attached(tmp_path) as watched:
        with suppress(KeyboardInterrupt):
            loop.run(20, requesting(watched, CommandKind.STOP, at))
        watched.session.end(SystemExit(1))
    run = recorded(watched.folder).run
    assert (run.state, run.state_message) == (state, message)


def test_a_script_that_catches_a_stop_and_trains_on_is_followed_until_it_is_stopped_again(
    tmp_path: Path,
) -> None:
    loop = Loop()
    with attached(tmp_path) as watched:
        with pytest.raises(ScriptStopped):
            loop.run(20, requesting(watched, CommandKind.STOP, 8))
        loop.run(10)
    log = recorded(watched.folder)
    assert (log.run.state, len(log.steps)) == (RunState.FINISHED, 18)
    (warning,) = [event for event in log.events if event.kind == EventKind.WARNING]
    assert warning.message == (
        "The script caught the KeyboardInterrupt of the stop and goes on: it has taken step 9. "
        "Stop it again: if it catches that too, its process is terminated."
    )


def test_a_pause_waits_between_two_steps_and_belongs_to_none(tmp_path: Path) -> None:
    loop = Loop()
    with attached(tmp_path) as watched:
        inbox = watched.session.inbox

        def before(step: int) -> None:
            if step == 10:
                inbox.put(a_command(CommandKind.PAUSE, "{}"))
                threading.Timer(0.5, inbox.put, [a_command(CommandKind.RESUME, "{}")]).start()

        loop.run(20, before)
    log = recorded(watched.folder)
    assert len(log.steps) == 20
    before_it, after_it = log.steps[9:11]
    assert after_it.t_ns - before_it.t_ns - after_it.step_ns > 250_000_000
    for row in log.steps:
        assert row.forward_ns + row.backward_ns + row.optimizer_ns <= row.step_ns


@pytest.mark.parametrize(
    ("error", "state", "message"),
    [
        (KeyboardInterrupt(), RunState.STOPPED, "Stopped by Ctrl-C."),
        (ValueError("shapes do not fit"), RunState.FAILED, "ValueError: shapes do not fit"),
    ],
)
def test_an_error_in_the_middle_of_a_step_is_the_end_of_the_run(
    tmp_path: Path, error: BaseException, state: RunState, message: str
) -> None:
    loop = Loop()

    def interrupt(_gradient: torch.Tensor) -> None:
        if loop.step == 9:
            raise error

    def script(_watched: Attached) -> None:
        loop.model.weight.register_hook(interrupt)
        loop.run(20)

    raised, log = ended_by(tmp_path, script)
    assert raised is error
    assert (log.run.state, log.run.state_message, len(log.steps)) == (state, message, 9)


def test_after_an_error_that_the_script_catches_its_steps_are_whole_again(tmp_path: Path) -> None:
    loop = Loop()

    def fail(_gradient: torch.Tensor) -> None:
        if loop.step == 9:
            loop.step += 1
            raise RuntimeError("once")

    def train() -> None:
        loop.model.weight.register_hook(fail)
        with pytest.raises(RuntimeError, match="once"):
            loop.run(20)
        loop.run(10)

    log = steps_of(tmp_path, train)
    assert len(log.steps) == 19
    assert all(row.forward_ns > 0 for row in log.steps[1:])
    assert log.unexplained_gaps_ns() == {}


def test_a_script_without_a_step_says_so(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint(torch.nn.Linear(2, 2)(torch.ones(1, 2)).shape)\n")
    _, folder = ran_watched(tmp_path, script)
    log = recorded(folder)
    assert (log.run.state, log.steps) == (RunState.FINISHED, [])
    assert log.run.state_message.startswith("The script ended")


def test_a_second_thread_that_trains_is_reported_and_not_mixed_in(tmp_path: Path) -> None:
    first, second = Loop(), Loop()

    def train() -> None:
        first.run(5)
        other = threading.Thread(target=second.run, args=(50,))
        other.start()
        first.run(5)
        other.join()

    log = steps_of(tmp_path, train)
    assert (first.step, second.step, len(log.steps)) == (10, 50, 10)
    (warning,) = [event for event in log.events if event.kind == EventKind.WARNING]
    assert warning.message == (
        "An optimizer stepped in another thread than the one that trained first, or that called "
        "stepscope.watch: such steps are not followed."
    )


def test_of_two_threads_that_begin_at_the_same_moment_one_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def search_together() -> list[torch.optim.Optimizer]:
        with suppress(threading.BrokenBarrierError):
            both.wait(5)
        return live_optimizers()

    monkeypatch.setattr(session, "live_optimizers", search_together)
    loops = Loop(), Loop()

    def train() -> None:
        threads = [threading.Thread(target=loop.run, args=(20,)) for loop in loops]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    log = steps_of(tmp_path, train)
    assert [loop.step for loop in loops] == [20, 20]
    assert (log.run.state_message, len(log.steps)) == ("The script ended after 20 steps.", 20)


@pytest.mark.slow
@pytest.mark.parametrize("is_in_two_lines", [False, True])
def test_a_script_goes_on_without_stepscope_once_its_runs_folder_is_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_in_two_lines: bool
) -> None:
    loop = Loop()

    def before(step: int) -> None:
        if step == 5:
            (folder,) = Home(tmp_path).runs()
            shutil.rmtree(folder.path)
            time.sleep(1.5)  # It is looked for once per second.

    if is_in_two_lines:
        with stepscope.watch(loop.model, loop.optimizer, home=tmp_path) as run:
            for _ in run.steps(range(20)):
                loop.run(1, before)
            assert not run.is_stopped
    else:
        with attached(tmp_path) as watched:
            loop.run(20, before)
            watched.session.end(None)
    assert loop.step == 20
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"stepscope: The folder of this run, {tmp_path}")
    assert line.endswith(", was deleted while it trained. The script goes on without Stepscope.")
    assert Home(tmp_path).runs() == []


def test_what_breaks_in_the_watch_does_not_break_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop()
    with attached(tmp_path) as watched:
        loop.run(5)

        def fail(*_arguments: object) -> None:
            raise OSError("no space left")

        assert watched.session.watch is not None
        watched.session.watch.context.device.empty_cache = fail  # type: ignore[method-assign]
        watched.guard.run(fail)
        loop.run(5)
    log = recorded(watched.folder)
    assert (loop.step, len(log.steps), log.run.state) == (10, 5, RunState.FINISHED)
    assert log.run.state_message == (
        "The script ended. It was not followed to its end: OSError: no space left; "
        "the script goes on without Stepscope."
    )
    assert "OSError: no space left" in capsys.readouterr().err


def test_torch_is_as_before_when_the_session_has_ended(tmp_path: Path) -> None:
    def entry_points() -> list[object]:
        return [
            torch.utils.data.DataLoader.__iter__,
            torch.autograd.backward,
            torch.optim.Optimizer.__init__,
            torch.amp.GradScaler.step,
            torch.amp.GradScaler.scale,
            nn.Module.zero_grad,
            nn.Linear.__call__,
            "__call__" in vars(nn.Linear),
        ]

    before = entry_points()
    steps_of(tmp_path, lambda: Loop().run(3))
    assert entry_points() == before


def test_models_that_the_script_lets_go_of_are_not_kept_alive(tmp_path: Path) -> None:
    loop = Loop()
    model, optimizer = weakref.ref(loop.model), weakref.ref(loop.optimizer)
    with attached(tmp_path) as watched:
        loop.run(8)
        loop = Loop()
        gc.collect()
        assert (model(), optimizer()) == (None, None)
        loop.run(8)
    assert len(recorded(watched.folder).steps) == 16


def test_a_script_that_forgets_to_step_its_optimizer_reads_so(tmp_path: Path) -> None:
    loop = Loop()
    with attached(tmp_path) as watched:
        for _ in range(3):
            loop.model(torch.zeros(2, 4)).sum().backward()
        watched.session.end(None)
    run = recorded(watched.folder).run
    assert run.state_message == (
        "The script ended before its first step: backward() was called, but no optimizer stepped."
    )


def test_a_script_that_steps_its_optimizer_in_another_thread_reads_so(tmp_path: Path) -> None:
    loop = Loop()
    with attached(tmp_path) as watched:
        for _ in range(3):
            loop.model(torch.zeros(2, 4)).sum().backward()
            thread = threading.Thread(target=loop.optimizer.step)
            thread.start()
            thread.join()
        watched.session.end(None)
    assert recorded(watched.folder).run.state_message == (
        "The script ended before its first step: an optimizer stepped only in another thread, which is not "
        "followed."
    )


@pytest.mark.parametrize(("code", "state"), [(None, RunState.FINISHED), (0, RunState.FINISHED)])
def test_an_exit_without_an_error_is_a_good_end(code: int | None, state: RunState) -> None:
    assert ending_of(SystemExit(code), 3) == (None, state, "The script ended after 3 steps.")


@pytest.mark.parametrize(("code", "text"), [(2, "2"), (True, "1"), ("wrong arguments", "'wrong arguments'")])
def test_an_exit_with_an_error_is_a_failure(code: int | str, text: str) -> None:
    ending = ending_of(SystemExit(code), 3)
    assert isinstance(ending.error, ScriptExitError)
    assert (ending.state, ending.message) == (RunState.FAILED, f"The script exited with {text}.")


def test_a_script_that_is_stopped_has_time_for_its_clean_up_before_it_is_signaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "find_process", lambda _folder: "a process")
    monkeypatch.setattr(supervisor, "signal_run", lambda _folder, _number: True)
    home = Home(tmp_path)
    script = home.create_for_script(None, origin_of(Script("train.py", (), is_module=False)), 0)
    ours = home.create(None, Settings(), 1)
    impatient = supervisor.Supervisor(home, patience=Patience(0, 0, 0))
    assert impatient.escalation(ours).poll() == EscalationStage.TERMINATED
    stopping = impatient.escalation(script)
    assert stopping.poll() == EscalationStage.REQUESTED
    assert stopping.hurry() == EscalationStage.TERMINATED

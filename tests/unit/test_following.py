"""Following a run from the shell: the line that is shown, and what each Ctrl-C does."""

import os
import signal
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from harness.cli.following import Follower, progress_line
from harness.cli.shell import Shell
from harness.records import RunState
from tests.supervision import Scene, until


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "home")
    yield scene
    scene.close()


def a_shell() -> tuple[Shell, StringIO]:
    said = StringIO()
    return Shell({}, Console(file=StringIO()), Console(file=said, width=200)), said


def test_a_followed_run_ends_with_its_summary(scene: Scene) -> None:
    shell, said = a_shell()
    folder = scene.start("finish")
    run = Follower(scene.supervisor, folder, shell, is_quiet=False).follow()
    assert run.status.state is RunState.FINISHED
    assert "step " in said.getvalue()


def test_each_interrupt_goes_one_stage_further(scene: Scene) -> None:
    shell, said = a_shell()
    folder = scene.start("deaf")
    scene.wait_for(folder, RunState.RUNNING)

    def interrupt_until_over() -> None:
        for sign in ("", "SIGTERM"):
            until(folder.output_tail, lambda lines, sign=sign: any(sign in line for line in lines))  # type: ignore[misc]
            os.kill(os.getpid(), signal.SIGINT)
            until(said.getvalue, lambda text: "Ctrl-C" in text)

    before = signal.getsignal(signal.SIGINT)
    interrupter = threading.Timer(0.3, interrupt_until_over)
    interrupter.start()
    run = Follower(scene.supervisor, folder, shell, is_quiet=False).follow()
    interrupter.join()
    assert run.status.state is RunState.KILLED
    assert said.getvalue().count("press Ctrl-C again") == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_the_line_tells_step_loss_time_rate_and_memory(scene: Scene) -> None:
    folder = scene.start("finish")
    scene.wait_for(folder, RunState.FINISHED)
    line = progress_line(scene.supervisor.summary(folder))
    for part in ("step ", "loss 0.5", "ms/step", "samples/s", "MiB (peak"):
        assert part in line

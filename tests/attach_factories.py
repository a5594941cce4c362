"""Scripts under watch within the test's own process, and what their logs say."""

import gc
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from harness.attach import evaluations
from harness.attach.guard import ScriptGuard
from harness.attach.launch import Script, execute, origin_of
from harness.attach.session import Session
from harness.records.run import EventKind, EventRow, RunRow, StepRow
from harness.store.folder import RunFolder
from harness.store.folder_handle import FolderHandle
from harness.store.home import Home
from harness.store.liveness import Liveness
from harness.store.reader import LogReader
from harness.watch.boundary import WARM_UP_STEPS
from harness.watch.watch import RunFiles

LAST = 10**9
SCRIPTS = Path(__file__).parent / "scripts"


def record_each_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each evaluation have an event of its own, however soon it follows the one before."""
    monkeypatch.setattr(evaluations, "EVENT_NS", 0)
    monkeypatch.setattr(evaluations, "EVENT_SHARE", 0.0)


class Attached(NamedTuple):
    """A session over this process, and the folder of its run."""

    session: Session
    folder: RunFolder
    guard: ScriptGuard


class Ran(NamedTuple):
    """The end of a script, and what it printed."""

    error: BaseException | None
    stdout: str
    stderr: str


@contextmanager
def attached(home: Path) -> Iterator[Attached]:
    """A session that follows this process, until `session.end` at the latest when the context ends."""
    gc.collect()  # Optimizers of earlier tests are not the script's.
    script = Script(str(SCRIPTS / "image_classifier.py"), (), is_module=False)
    folder = Home(home).create_for_script(None, origin_of(script), 0)
    with FolderHandle(folder) as handle, Liveness.hold(handle.steady.alive) as alive:
        guard = ScriptGuard()
        session = Session(folder, RunFiles(folder.path, handle, alive), guard, lambda: None)
        error: BaseException | None = None
        try:
            yield Attached(session, folder, guard)
        except BaseException as raised:
            error = raised
            raise
        finally:
            session.end(error)


def ran(script: Path, *arguments: str) -> Ran:
    """Run a script in this process, which is as before afterwards."""
    argv, path, threads = sys.argv, list(sys.path), torch.get_num_threads()
    out, err, directory = StringIO(), StringIO(), os.getcwd()
    with redirect_stdout(out), redirect_stderr(err):
        error = execute(Script(str(script), arguments, is_module=False))
    sys.argv, sys.path[:] = argv, path
    torch.set_num_threads(threads)
    os.chdir(directory)
    return Ran(error, out.getvalue(), err.getvalue())


def ran_watched(home: Path, script: Path, *arguments: str) -> tuple[Ran, RunFolder]:
    """Run a script in this process under watch."""
    random.seed(1)
    with attached(home) as (session, folder, _):
        done = ran(script, *arguments)
        session.end(done.error)
    return done, folder


class Recorded(NamedTuple):
    """A log: the run, its steps, its events, and the settings at its end."""

    run: RunRow
    steps: list[StepRow]
    events: list[EventRow]
    values: dict[str, Any]

    @property
    def evaluations_ns(self) -> dict[int, int]:
        """The durations of evaluations, by the step that followed."""
        evaluations = [event for event in self.events if event.kind == EventKind.EVALUATION]
        return {event.step: json.loads(event.detail)["duration_ns"] for event in evaluations}

    @property
    def samples(self) -> list[int]:
        """The samples of each step."""
        return [row.samples for row in self.steps]

    def unexplained_gaps_ns(self) -> dict[int, int]:
        """Return the time between a step and the one before that is no evaluation, by step. Left out are the
        steps before which the watch searches for the models, and counts their memory."""
        gaps_ns = {
            row.step: row.t_ns - before.t_ns - row.step_ns - self.evaluations_ns.get(row.step, 0)
            for before, row in pairwise(self.steps)
            if row.step not in (2, WARM_UP_STEPS + 1)
        }
        return {step: gap_ns for step, gap_ns in gaps_ns.items() if gap_ns}


def recorded(folder: RunFolder) -> Recorded:
    """Read the log of a run that has ended."""
    with LogReader(folder.log) as log:
        events = [event for _, event in log.events()]
        values = [version.values for version in log.settings_history()]
        return Recorded(log.run(), log.steps(1, LAST), events, values[-1] if values else {})


def steps_of(home: Path, train: Callable[[], None]) -> Recorded:
    """Train under watch, and return the log."""
    with attached(home) as (_, folder, guard):
        train()
        assert guard.is_on
    return recorded(folder)

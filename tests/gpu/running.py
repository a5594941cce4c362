"""Runs the stages of `make gpu-check`, each in a process of its own, within a given time. Free of torch."""

import ctypes
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.gpu.journal import ResultsFile, StageResults, StageState
from tests.gpu.stage import TIME_IS_OVER
from tests.gpu.stages import Stage

ROOT = Path(__file__).parents[2]
START_S = 15.0
"""The time for a process to start, torch and CUDA included."""
_REASON_LINES, _REASON_CHARACTERS = 3, 600
_END_S = 10.0
_PR_SET_CHILD_SUBREAPER = 36


class Order(NamedTuple):
    """Arguments common to the stages of a call. `within_s` is the time of all of them together."""

    device: str
    seed: int
    within_s: float
    is_quick: bool = False


class Exit(NamedTuple):
    """End of a process: its exit code (None: stopped because its time was over), and the end of what it
    wrote to stderr."""

    code: int | None
    stderr: str


Start = Callable[[Sequence[str], float], Exit]
"""Runs a command for so many seconds at most."""


def adopt_orphans() -> None:
    """Have the kernel make descendants whose parent ended children of this process (Linux), so that
    `run_process` finds the training processes that a stage left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run_process(command: Sequence[str], timeout_s: float) -> Exit:
    """Run a command, and kill it at the end of the time. Whatever it started is killed behind it: a training
    process that goes on would disturb what is measured next."""
    before = set(psutil.Process().children())
    with tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(command, cwd=ROOT, stderr=stderr, start_new_session=True)
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _kill([child for child in psutil.Process().children(recursive=True) if child not in before])
            process.wait(_END_S)
        stderr.seek(0)
        text = stderr.read().decode(errors="replace")
    return Exit(code, text)


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, _END_S)


class Runner:
    """Runs stages one after the other and keeps how they ended."""

    def __init__(
        self,
        results: ResultsFile,
        order: Order,
        start: Start = run_process,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` and `clock_s` stand in for processes and time in tests."""
        self._results = results
        self._order = order
        self._start = start
        self._clock_s = clock_s
        self._end_s = clock_s() + order.within_s

    def run(self, stages: Sequence[Stage], after_each: Callable[[Stage], object]) -> None:
        """Run the stages in the order of their rank; those for which there is no time are left out."""
        for stage in sorted(stages, key=lambda stage: stage.rank):
            if self._end_s - self._clock_s() < START_S + stage.item_s:
                continue
            self._run_stage(stage)
            after_each(stage)

    def _run_stage(self, stage: Stage) -> None:
        """Start the stage's process, and again without the item that it died of, until the time is over."""
        if stage.needs_cuda and self._order.device == "cpu":
            self._results.state(stage.key, StageState.FINISHED, "needs a CUDA device", 0.0)
            return
        began_s = self._clock_s()
        end_s = min(began_s + stage.budget_s, self._end_s)
        while True:
            left_s = end_s - self._clock_s()
            result = self._start(self._command(stage, left_s), left_s)
            _print_end(result.stderr)
            state, reason = self._judge(stage, result)
            if state is not None:
                break
            if end_s - self._clock_s() < START_S + stage.item_s:
                state, reason = StageState.UNFINISHED, "its time was over"
                break
        self._results.state(stage.key, state, reason, self._clock_s() - began_s)

    def _judge(self, stage: Stage, result: Exit) -> tuple[StageState | None, str]:
        """The state that the stage is in; None: it died of one item, and continues without it."""
        if result.code == 0:
            return StageState.FINISHED, ""
        results = self._results.read().stage(stage.key)
        if result.code in (None, TIME_IS_OVER):
            under_way = "" if results.open_item is None else f", during {results.open_item}"
            return StageState.UNFINISHED, f"its time was over{under_way if result.code is None else ''}"
        reason = _how_it_ended(result)
        if results.open_item is None:
            return StageState.DIED, reason
        self._results.failure(stage.key, results.open_item, reason)
        return None, ""

    def _command(self, stage: Stage, left_s: float) -> list[str]:
        order = self._order
        seconds = left_s - stage.item_s
        command = [sys.executable, "-m", "tests.gpu.stage", stage.key, "--results", str(self._results.path)]
        command += ["--device", order.device, "--seed", str(order.seed), "--seconds", f"{seconds:.0f}"]
        return [*command, "--quick"] if order.is_quick else command


def needs_run(results: StageResults) -> bool:
    """Return whether a call without names runs the stage: it never finished."""
    return results.state is not StageState.FINISHED


def _print_end(text: str) -> None:
    """Pass the end of a stage's stderr on, for who watches."""
    sys.stderr.write("".join(text.splitlines(keepends=True)[-40:]))


def _how_it_ended(result: Exit) -> str:
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    message = " / ".join(lines[-_REASON_LINES:])[-_REASON_CHARACTERS:]
    if result.code is not None and result.code < 0:
        ended = f"killed by {signal.Signals(-result.code).name}"
        return f"{ended}: {message}" if message else ended
    return message or f"exit code {result.code}"

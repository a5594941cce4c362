"""Runs that a scenario does something to: real training processes, forked from one that has torch."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from harness.records.run import StepRow
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.faults.case import Case
from tests.faults.curve import read_curve, read_steps
from tests.faults.forks import PATIENCE_S, Forks
from tests.supervision import until

MODEL: dict[str, Any] = {"model": "mlp", "device": "cpu", "batch_size": 8, "measure_overhead": False}
"""A small model with every step in the log: none goes unobserved."""


class FaultyRun:
    """One run: its folder, its process, and what it left."""

    def __init__(self, trainer: "Trainer", folder: RunFolder, case: Case, pid: int) -> None:
        self._trainer = trainer
        self.folder = folder
        self.case = case
        self.pid = pid

    @property
    def status(self) -> int | None:
        """Return how the process ended, as `waitpid` has it; None while it runs."""
        return self._trainer.ended(self.pid)

    @property
    def steps(self) -> int:
        """Return how many steps have been trained."""
        return read_steps(self.case.curve)

    @property
    def losses(self) -> list[float]:
        """The loss of every step that was trained, logged or not."""
        return read_curve(self.case.curve)

    @property
    def failed_calls(self) -> int:
        """Return how many calls failed in a process that came to its end."""
        return (
            int(self.case.report.read_text(encoding="ascii").split()[0]) if self.case.report.exists() else 0
        )

    def send(self, number: signal.Signals) -> None:
        """Signal the process."""
        os.kill(self.pid, number)

    def wait_for_step(self, step: int) -> None:
        """Wait until so many steps have been trained."""
        until(lambda: self.steps, lambda steps: steps >= step or self.status is not None, PATIENCE_S)

    def wait(self, limit_s: float = PATIENCE_S) -> int:
        """Wait until the process has ended; its status. Kills it, and fails, when it does not end."""
        deadline_s = time.monotonic() + limit_s
        while (status := self.status) is None:
            if time.monotonic() > deadline_s:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"the run {self.folder.path} did not end within {limit_s:g} s")
            time.sleep(0.005)
        return status

    def rows(self) -> list[StepRow]:
        """Every step in the log, after a check of its soundness. Raises LogError."""
        with LogReader(self.folder.log) as log:
            log.check()
            return log.steps(1, log.extent().last or 0, limit=1_000_000)


class Trainer(Forks):
    """Forks training processes."""

    def __init__(self, library: Path) -> None:
        """`library` is loaded before everything else (see `tests.faults.shim`)."""
        super().__init__("tests.faults.zygote", {"LD_PRELOAD": str(library), "PYTHONUNBUFFERED": "1"})

    def train(self, home: Home, settings: dict[str, Any], **fault: int) -> FaultyRun:
        """Create a run and fork its process."""
        folder = home.create(None, resolve(MODEL | settings), time.time_ns())
        case = Case(str(folder.path), **fault)
        return FaultyRun(self, folder, case, self.start(case.to_line()))

"""Starts the process that judges a measurement: whether it is conclusive already, and at its end whether the
change is kept.

Statistics are computed there, not in the training process. It acts as any other client of the run: it reads
the log, and sends commands to end the measurement or to apply the change.
"""

import subprocess
import sys
from pathlib import Path

from harness.watch.context import RunContext
from harness.watch.jobs.sampler import Job, every
from harness.watch.judge_queue import JudgeQueue

PERIOD_S = 0.5


class Judging:
    """Starts one judge at a time, on the sampler's thread."""

    def __init__(self, context: RunContext, folder: Path, queue: JudgeQueue) -> None:
        """The measurements of `queue` are removed from it."""
        self._context = context
        self._folder = folder
        self._queue = queue
        self._judge: subprocess.Popen[bytes] | None = None

    @property
    def job(self) -> Job:
        """The job of the sampler."""
        return Job("judge of measurements", every(PERIOD_S), self.check)

    def check(self) -> None:
        """Start the judge of the oldest measurement, unless one is at work, and report one that failed."""
        judge, queue = self._judge, self._queue
        if judge is not None:
            code = judge.poll()
            if code is None:
                return
            self._judge = None
            if code:
                self._warn(f"the process that compares the blocks ended with exit code {code}")
        # The blocks are to be in the log before the judge reads it.
        if queue.numbers and self._context.journal.flush(1.0):
            queue.is_judging = True
            self._start(queue.numbers.pop(0))
        queue.is_judging = self._judge is not None

    def _start(self, number: int) -> None:
        command = [sys.executable, "-m", "harness", "_judge", str(self._folder), str(number)]
        try:
            self._judge = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            self._warn(str(error.strerror or error))

    def _warn(self, reason: str) -> None:
        self._context.warn(
            "measurement not judged",
            f"The blocks of a measurement could not be compared: {reason}. A measurement in progress goes on "
            "to its last pair; a completed one leaves the settings as they were before it.",
        )

"""Progress of a run in the shell until it ends: a live line on a terminal, periodic lines elsewhere."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

from harness import words
from harness.cli.shell import Shell
from harness.records.run import RunState
from harness.store.folder import RunFolder
from harness.supervisor import Escalation, RunSummary, Supervisor

_POLL_S = 0.2
_PLAIN_LINE_S = 2.0


class InterruptCounter:
    """Counts Ctrl-C instead of raising KeyboardInterrupt."""

    def __init__(self) -> None:
        self.count = 0

    def count_signal(self, _number: int, _frame: FrameType | None) -> None:
        """The signal's handler."""
        self.count += 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count while the context is open, unless Ctrl-C is ignored (nohup)."""
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN:
            yield
            return
        signal.signal(signal.SIGINT, self.count_signal)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class RunFollower:
    """Follows one run. The first Ctrl-C requests it to stop, the second forces it, further ones escalate."""

    def __init__(self, supervisor: Supervisor, folder: RunFolder, shell: Shell, *, is_quiet: bool) -> None:
        self._supervisor = supervisor
        self._folder = folder
        self._shell = shell
        self._is_quiet = is_quiet
        self._interrupts = InterruptCounter()
        self._handled = 0
        self._escalation: Escalation | None = None

    @property
    def was_interrupted(self) -> bool:
        """Return whether Ctrl-C requested the run to stop."""
        return self._escalation is not None

    def follow(self) -> RunSummary:
        """Show progress until the run has ended; return its last summary."""
        with self._interrupts.counting():
            if self._is_quiet:
                return self._watch_quietly()
            if self._shell.err.is_terminal:
                return self._watch_live()
            return self._watch_plainly()

    def _watch_quietly(self) -> RunSummary:
        for run in self._summaries():
            last = run
        return last

    def _watch_plainly(self) -> RunSummary:
        due_s, printed = 0.0, ""
        for run in self._summaries():
            last, line = run, progress_line(run)
            if time.monotonic() >= due_s and line != printed:
                self._shell.print_status(line)
                due_s, printed = time.monotonic() + _PLAIN_LINE_S, line
        if line != printed:
            self._shell.print_status(line)
        return last

    def _watch_live(self) -> RunSummary:
        columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}", markup=False))
        with Progress(*columns, console=self._shell.err, refresh_per_second=5) as progress:
            task = progress.add_task("", total=None)
            for run in self._summaries():
                last = run
                total = None if run.settings is None else run.settings.values.max_steps
                progress.update(
                    task, total=total, completed=run.last_step or 0, description=progress_line(run)
                )
        return last

    def _summaries(self) -> Iterator[RunSummary]:
        while True:
            self._handle_interrupts()
            run = self._supervisor.summary(self._folder)
            yield run
            if run.status.state.is_over:
                return
            time.sleep(_POLL_S)

    def _handle_interrupts(self) -> None:
        if self._escalation is not None:
            self._escalation.poll()
        while self._handled < self._interrupts.count:
            self._handled += 1
            if self._escalation is None:
                if self._supervisor.status(self._folder).state.is_over:
                    return
                self._shell.print_status("Stopping after this step; press Ctrl-C again to force it.")
                undelivered = self._supervisor.send_stop(self._folder, source="shell")
                if undelivered is not None:
                    self._shell.print_status(f"{undelivered} The run is stopped by signals instead.")
                self._escalation = self._supervisor.escalation(self._folder, undelivered=undelivered)
            else:
                self._escalation.hurry()


def progress_line(run: RunSummary) -> str:
    """Format a run's current figures as one line."""
    if run.last_step is None:
        return words.printable(run.status.message)
    total = None if run.settings is None else run.settings.values.max_steps
    step = words.count(run.last_step) + ("" if total is None else f"/{words.count(total)}")
    parts = [
        f"step {step}",
        f"loss {words.figure(run.loss)}",
        f"{words.milliseconds(run.step_ns)}/step",
        words.rate(run.samples_per_s),
        f"{words.size(run.allocated_bytes)} (peak {words.size(run.peak_allocated_bytes)})",
    ]
    if run.status.state is not RunState.RUNNING:
        parts.insert(0, run.status.state.value.replace("_", " "))
    return "  ".join(parts)

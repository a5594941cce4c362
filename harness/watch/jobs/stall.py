"""Detection of stalls: an event, and every thread's stack in the run's output."""

import faulthandler
import sys
from collections.abc import Callable

from harness.records.run import EventKind, EventRow, RunState, Severity
from harness.watch.context import RunContext


class StallWatch:
    """A job of the sampler. A paused run is not stalled."""

    def __init__(
        self,
        context: RunContext,
        is_paused: Callable[[], bool],
        stall_after_s: float,
        dump_stacks: Callable[[], None] | None = None,
    ) -> None:
        self._context = context
        self._is_paused = is_paused
        self._stall_after_ns = int(stall_after_s * 1e9)
        self._dump_stacks = dump_stacks or (lambda: faulthandler.dump_traceback(sys.stderr))
        self._resumed_ns = context.clock_ns()
        self._stalled_step: int | None = None

    def check(self) -> None:
        """Compare the newest step's age with the limit."""
        journal, progress = self._context.journal, self._context.progress
        now_ns, step = self._context.clock_ns(), progress.last_step
        if self._is_paused():
            self._resumed_ns = now_ns
            return
        idle_ns = now_ns - max(progress.last_end_ns, self._resumed_ns)
        if self._stalled_step is None and idle_ns >= self._stall_after_ns:
            self._stalled_step = step
            message = f"No step has ended for {idle_ns / 1e9:.0f} s; the stacks are in the run's output."
            self._dump_stacks()
            journal.put(
                EventRow(now_ns, step, EventKind.STALL, Severity.WARNING, "stalled", message, "{}", None)
            )
            journal.set_state(RunState.STALLED, message, timeout_s=0)
        elif self._stalled_step is not None and step > self._stalled_step:
            self._stalled_step = None
            journal.set_state(RunState.RUNNING, f"Continuing at step {step:,}.", timeout_s=0)

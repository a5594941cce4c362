"""Detection of stalls: an event, with every thread's stack in the run's output, or the line of a script.

A script may evaluate for many minutes. As long as it loads batches and calls models that is no stall.
"""

import faulthandler
import sys
import sysconfig
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from threading import get_ident
from types import FrameType

import harness
from harness.analysis.state import NO_STEP_ENDED
from harness.records.run import EventKind, EventRow, RunState, Severity
from harness.watch.context import RunContext

_OURS = Path(harness.__file__).parents[1]
_LIBRARIES = (f"{sysconfig.get_path('stdlib')}/", f"{_OURS}/harness/", f"{_OURS}/stepscope/", "<frozen ")
_PACKAGES = ("/site-packages/", "/dist-packages/")


class _Pace(Enum):
    """The pace of a run: steps end as usual, none ends but something happens, or nothing happens."""

    USUAL = auto()
    BETWEEN_STEPS = auto()
    STALLED = auto()


class StallWatch:
    """A job of the sampler. A paused run is not stalled."""

    def __init__(
        self,
        context: RunContext,
        is_paused: Callable[[], bool],
        stall_after_s: float,
        find_cause: Callable[[], str],
        find_last_event: Callable[[], int] = int,
    ) -> None:
        """`find_cause` returns the end of the sentence about a stall, `find_last_event` is as
        `Training.last_event_ns`."""
        self._context = context
        self._is_paused = is_paused
        self._stall_after_ns = int(stall_after_s * 1e9)
        self._find_cause = find_cause
        self._find_last_event = find_last_event
        self._resumed_ns = context.clock_ns()
        self._pace = _Pace.USUAL

    def check(self) -> None:
        """Compare the age of the newest step, and of the newest event, with the limit."""
        journal, progress = self._context.journal, self._context.progress
        now_ns, step = self._context.clock_ns(), progress.last_step
        if self._is_paused():
            self._resumed_ns = now_ns
            return
        idle_ns = now_ns - max(progress.last_end_ns, self._resumed_ns)
        quiet_ns = now_ns + progress.zero_ns - self._find_last_event()
        pace = _Pace.USUAL
        if idle_ns >= self._stall_after_ns:
            pace = _Pace.STALLED if quiet_ns >= self._stall_after_ns else _Pace.BETWEEN_STEPS
        if pace is self._pace:
            return
        self._pace = pace
        if pace is _Pace.USUAL:
            journal.set_state(RunState.RUNNING, f"Continuing at step {step:,}.", timeout_s=0)
            return
        none_ended = f"{NO_STEP_ENDED} {idle_ns / 1e9:.0f} s"
        if pace is _Pace.BETWEEN_STEPS:
            message = f"{none_ended}, but models are called, as in an evaluation; {self._find_cause()}."
            journal.set_state(RunState.RUNNING, message, timeout_s=0)
            return
        message = f"{none_ended}; {self._find_cause()}."
        journal.put(EventRow(now_ns, step, EventKind.STALL, Severity.WARNING, "stalled", message, "{}", None))
        journal.set_state(RunState.STALLED, message, timeout_s=0)


def dump_stacks() -> str:
    """Write every thread's stack into the output, and return where they are."""
    faulthandler.dump_traceback(sys.stderr)
    return "the stacks are in the run's output"


def line_of_this_thread() -> Callable[[], str]:
    """Return a function that states which line of a script the thread that calls this one executes. The
    script's output is not ours, and it may as well evaluate, or compile its model."""
    thread = get_ident()

    def find_line() -> str:
        frame: FrameType | None = sys._current_frames().get(thread)
        while frame is not None and _is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return "the script is in no line of its own"
        code = frame.f_code
        return f"the script is at {Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"

    return find_line


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or any(part in file for part in _PACKAGES)

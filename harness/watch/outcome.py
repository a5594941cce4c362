"""The outcome of a run in its log, whatever the reason for its end."""

import gc
import json
import re
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Self

from harness import words
from harness.analysis.oom.error import is_of_killed_worker
from harness.analysis.oom.report import OomPhase
from harness.errors import SettingError, StepscopeError, text_of
from harness.notices import print_traceback
from harness.records.run import EventKind, EventRow, MemoryReading, RunState, Severity
from harness.tracebacks import leave_out_own_frames
from harness.watch.boundary import Outcome
from harness.watch.context import RunContext
from harness.watch.memory import MemoryWatch
from harness.watch.oom.errors import (
    NoRecoveryError,
    attempt,
    is_ambiguous,
    is_out_of_memory,
    memory_error_of,
    release_frames,
)
from harness.watch.oom.reporter import OomReporter, Subject

# The escape sequences of bold and colored text in a terminal, as torch.load has in its errors.
_STYLE = re.compile(r"\x1b\[[\d;]*m")
_MESSAGE_LIMIT = 2_000
_FLUSH_S = 2.0
_LESS_FOR_WORKERS = "Fewer workers, smaller batches or a smaller prefetch_factor need less memory."


class OutcomeRecorder:
    """Records the outcome of a run. `unix_ns` is wall time.

    Attributes:
        state: the final state; None while the run goes on.
    """

    def __init__(
        self,
        context: RunContext,
        memory: MemoryWatch,
        reporter: OomReporter,
        unix_ns: Callable[[], int] = time.time_ns,
        report: Callable[[RunState, str], None] = lambda _state, _message: None,
        *,
        prints_errors: bool = True,
        releases_frames: bool = True,
    ) -> None:
        """`report` takes the outcome too, for a log that cannot be written. `prints_errors` is whether the
        traceback of an out-of-memory error is printed here; a script's is printed as it ends, and recorded
        without the frames of Stepscope. `releases_frames` is whether the memory that the error's frames keep
        is released."""
        self._context = context
        self._device = context.device
        self._journal = context.journal
        self._memory = memory
        self._reporter = reporter
        self._unix_ns = unix_ns
        self._report = report
        self._prints_errors = prints_errors
        self._releases_frames = releases_frames
        self.state: RunState | None = None

    def recording(
        self, subject: Subject | None = None, planned: Callable[[], Outcome | None] = lambda: None
    ) -> "OutcomeRecording":
        """Return a context manager that records an error raised inside, with an event and a final state, and
        releases the memory of an out-of-memory error; the error propagates. `subject` is None before the
        training is built. `planned` returns the end that the run was to have without the error, such as a
        stop by a person; None: it was to go on."""
        return OutcomeRecording(self, subject, planned)

    def end(self, outcome: Outcome) -> None:
        """Record a regular end, unless an error was recorded before."""
        if self.state is None:
            self.state = outcome.state
            self._report(outcome.state, outcome.message)
            self._journal.finish(outcome.state, outcome.message, self._unix_ns())

    def failed(self, error: BaseException, subject: Subject | None, planned: Outcome | None = None) -> None:
        """Record the end by `error`, unless an end is recorded. Call it in the handler of `error`. For
        `planned` see `recording`."""
        if self.state is not None:
            return
        if isinstance(error, NoRecoveryError):
            state, kind = RunState.OUT_OF_MEMORY, EventKind.OOM
            self._end(state, kind, "out of memory", str(error), error.detail, error.step)
            return
        is_certain = is_out_of_memory(error)
        if is_certain or is_ambiguous(error):
            attempt(self._device.lift_cap_for_recovery)
            memory = attempt(self._device.read_memory)
            if is_certain or self._memory.has_failures(memory):
                self._out_of_memory(error, memory, subject)
                return
        self._failed(error, planned)

    def _out_of_memory(
        self, error: BaseException, memory: MemoryReading | None, subject: Subject | None
    ) -> None:
        """Record an out-of-memory error without recovery: keep strings only, and release all other memory."""
        text = _first_lines(memory_error_of(error) or error)
        is_training = subject is not None
        step = self._context.last_step + is_training
        if self._prints_errors:
            print_traceback(error)
        outside = OomPhase.SETUP if subject is None else subject.training.oom_phase
        capture = attempt(lambda: self._reporter.capture(error, step, outside, memory, subject))
        if self._releases_frames:
            release_frames(error)
        attempt(self._device.synchronize)
        gc.collect()
        attempt(self._device.empty_cache)
        when = f"in step {step:,}" if is_training else "before the first step"
        message = f"Out of memory {when}: {_allocated_sentence(memory)} {text}"
        detail: dict[str, object] = {
            "error": text,
            "memory": memory and memory._asdict(),
            "device": self._device.facts.name,
        }
        if capture is not None:
            report = self._reporter.explain(capture)._replace(
                outcome="The run ends; no recovery is possible here."
            )
            detail["verdict"], message = report.verdict.value, report.sentence
            self._reporter.file(report)
        self._end(RunState.OUT_OF_MEMORY, EventKind.OOM, "out of memory", message, json.dumps(detail), step)

    def _failed(self, error: BaseException, planned: Outcome | None) -> None:
        attempt(self._device.synchronize)
        text = _first_lines(error)
        if not self._prints_errors:
            leave_out_own_frames(error)
        ours = isinstance(error, StepscopeError)
        name = type(error).__name__
        message = text if ours or text == name else f"{name}: {text}"
        if is_of_killed_worker(text):
            shortage = self._reporter.shortage()
            message = _followed_by(message, f"{shortage} {_LESS_FOR_WORKERS}" if shortage else "")
        if planned is not None:
            message = _followed_by(message, f"The error came after the run was to end: {planned.message}")
        lines = [] if ours else traceback.format_exception(error)[-5:]
        detail = {"error": name, "last_lines": lines}
        if isinstance(error, SettingError):
            detail["setting"] = error.setting
        self._end(
            RunState.FAILED, EventKind.ERROR, "failed", message, json.dumps(detail), self._context.last_step
        )

    def _end(
        self,
        state: RunState,
        kind: EventKind,
        label: str,
        message: str,
        detail: str,
        step: int,
    ) -> None:
        self.state = state
        message = self._with_changes(message)
        self._report(state, message)
        self._journal.put_durable(
            EventRow(self._context.clock_ns(), step, kind, Severity.ERROR, label, message, detail, None)
        )
        self._journal.finish(state, message, self._unix_ns(), has_event=True)

    def _with_changes(self, message: str) -> str:
        """Return the message about an error with the live changes that it follows."""
        context = self._context
        if not context.changes:
            return message
        attempt(lambda: self._journal.flush(_FLUSH_S))  # Then the newest losses are known.
        step, not_finite_since = context.last_step, context.marks.not_finite_since
        sentences = attempt(lambda: context.changes.sentences(message, step, not_finite_since))
        return _followed_by(message, sentences or "")


class OutcomeRecording:
    """See `OutcomeRecorder.recording`."""

    def __init__(
        self, recorder: OutcomeRecorder, subject: Subject | None, planned: Callable[[], Outcome | None]
    ) -> None:
        self._recorder = recorder
        self._subject = subject
        self._planned = planned

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._recorder.failed(error, self._subject, self._planned())


def _first_lines(error: BaseException) -> str:
    text = " ".join(_STYLE.sub("", text_of(error)).split())
    return words.clip(text, _MESSAGE_LIMIT) or type(error).__name__


def _followed_by(message: str, sentences: str) -> str:
    end = "" if message.endswith((".", "!", "?")) else "."
    return f"{message}{end} {sentences}" if sentences else message


def _allocated_sentence(memory: MemoryReading | None) -> str:
    if memory is None or memory.allocated_bytes is None:
        return "the amount allocated is not known."
    return f"{words.size(memory.allocated_bytes)} were allocated when it failed."

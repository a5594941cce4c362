"""The last word of a run: how it ended, for the log, whatever happened."""

import gc
import json
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from harness import words
from harness.analysis.oom.report import OomPhase
from harness.device.protocol import Device
from harness.errors import StepscopeError
from harness.records import EventKind, EventRow, MemoryReading, RunState, Severity
from harness.train.control import Ending
from harness.train.oom import NoRecoveryError, attempt, is_ambiguous, is_out_of_memory, let_go
from harness.train.oom_reporter import OomReporter
from harness.train.oom_scene import Scene

_MESSAGE_LIMIT = 2_000


class EndJournal(Protocol):
    """Where the end is written down, durably."""

    def put_durable(self, row: EventRow) -> bool:
        """Record an event so that it survives a power cut."""
        ...

    def finish(self, state: RunState, message: str, ended_unix_ns: int, *, has_event: bool = False) -> bool:
        """Record the run's final state, and an event unless there is one that says so."""
        ...


class LastWords:
    """A context manager around everything that can fail. What is raised inside is recorded, with an event and
    a final state; an out-of-memory error is then swallowed, everything else goes on up.

    `clock_ns` counts from the run's start, `unix_ns` is wall time.

    Attributes:
        state: the final state, once there is one.
        is_training: set it when the loop begins, so that the words fit.
        reporter: explains why memory ran out; None: there is only the error's text.
        has_failures: decides on errors that may or may not be about memory, see `MemoryWatch.has_failures`.
    """

    def __init__(
        self,
        journal: EndJournal,
        device: Device,
        clock_ns: Callable[[], int],
        unix_ns: Callable[[], int],
        last_step: Callable[[], int],
    ) -> None:
        self._journal = journal
        self._device = device
        self._clock_ns = clock_ns
        self._unix_ns = unix_ns
        self._last_step = last_step
        self.state: RunState | None = None
        self.is_training = False
        self.reporter: OomReporter | None = None
        self.has_failures: Callable[[MemoryReading | None], bool] = lambda _reading: False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            return False
        if isinstance(error, NoRecoveryError):
            self._end(
                RunState.OUT_OF_MEMORY, EventKind.OOM, "out of memory", str(error), error.detail, error.step
            )
            return True
        is_certain = is_out_of_memory(error)
        if is_certain or is_ambiguous(error):
            attempt(self._device.lift_cap_for_recovery)
            memory = attempt(self._device.read_memory)
            if is_certain or self.has_failures(memory):
                self._out_of_memory(error, memory)
                return True
        self._failed(error)
        return False

    def say(self, ending: Ending) -> None:
        """Record an end that was meant."""
        self.state = ending.state
        self._journal.finish(ending.state, ending.message, self._unix_ns())

    def _out_of_memory(self, error: BaseException, memory: MemoryReading | None) -> None:
        """Memory ran out where nothing recovers from it: keep strings only, and let go of everything that is
        still held."""
        text = _first_lines(error)
        step = self._last_step() + self.is_training
        traceback.print_exception(error)
        scene = None if self.reporter is None else self._look(self.reporter, error, step, memory)
        let_go(error)
        attempt(self._device.synchronize)
        gc.collect()
        attempt(self._device.empty_cache)
        when = f"in step {step:,}" if self.is_training else "before the first step"
        message = f"Out of memory {when}: {_held(memory)} {text}"
        detail: dict[str, object] = {
            "error": text,
            "memory": memory and memory._asdict(),
            "device": self._device.facts.name,
        }
        if self.reporter is not None and scene is not None:
            report = self.reporter.explain(scene)._replace(
                outcome="The run ends; nothing can be undone here."
            )
            detail["verdict"], message = report.verdict.value, report.sentence
            self.reporter.file(report)
        self._end(RunState.OUT_OF_MEMORY, EventKind.OOM, "out of memory", message, json.dumps(detail), step)

    def _look(
        self, reporter: OomReporter, error: BaseException, step: int, memory: MemoryReading | None
    ) -> Scene | None:
        outside = OomPhase.BETWEEN if self.is_training else OomPhase.BUILD
        return attempt(lambda: reporter.look(error, step, outside, memory))

    def _failed(self, error: BaseException) -> None:
        attempt(self._device.synchronize)
        text = _first_lines(error)
        ours = isinstance(error, StepscopeError)
        message = text if ours else f"{type(error).__name__}: {text}"
        lines = [] if ours else traceback.format_exception(error)[-5:]
        detail = {"error": type(error).__name__, "last_lines": lines}
        self._end(RunState.FAILED, EventKind.ERROR, "failed", message, json.dumps(detail), self._last_step())

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
        self._journal.put_durable(
            EventRow(self._clock_ns(), step, kind, Severity.ERROR, label, message, detail, None)
        )
        self._journal.finish(state, message, self._unix_ns(), has_event=True)


def _first_lines(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:_MESSAGE_LIMIT] or type(error).__name__


def _held(memory: MemoryReading | None) -> str:
    if memory is None or memory.allocated_bytes is None:
        return "how much was held is not known here."
    return f"{words.size(memory.allocated_bytes)} were allocated when it failed."

"""The end of a run that was never watched: its outcome, the report on an out-of-memory error, and
the answers to commands.

Memory may have run out, so nothing here starts a thread: a stack takes 8 MiB under a limit of the process.
"""

import gc
import time
from collections.abc import Callable
from contextlib import ExitStack

from harness.device.protocol import Device
from harness.files.plain_json import json_object
from harness.records.run import EventKind, EventRow, RunRow, RunState, Severity
from harness.store.inserts import Row, StateChange
from harness.store.log_keeper import LogKeeper
from harness.store.outbox import Outbox
from harness.store.pending import Pending
from harness.watch.boundary import Outcome
from harness.watch.context import Marks, Progress, RunContext
from harness.watch.controller import expire
from harness.watch.guard import FailureGuard
from harness.watch.inbox import Inbox
from harness.watch.jobs.commands import CommandPoll
from harness.watch.memory import MemoryWatch
from harness.watch.oom.errors import attempt, is_out_of_memory
from harness.watch.oom.reporter import OomReporter
from harness.watch.outcome import OutcomeRecorder
from harness.watch.training import WatchSettings
from harness.watch.watch import CommandSource, RunFiles

# A log that cannot be written now is left: the outcome is also among the process's vital signs.
_MOST_STEPS = 1


class _ThreadlessJournal:
    """Writes each row at once, on the calling thread. See `harness.watch.context.Journal`."""

    def __init__(self, keeper: LogKeeper, clock_ns: Callable[[], int]) -> None:
        self._keeper = keeper
        self._clock_ns = clock_ns
        self._pending = Pending(_MOST_STEPS)

    def put(self, row: Row) -> None:
        self._pending.add(row)
        self._write(durable=False)

    def put_durable(self, row: Row) -> bool:
        self._pending.add(row)
        return self._write(durable=True)

    def set_state(self, state: RunState, message: str, timeout_s: float = 0.0) -> bool:  # noqa: ARG002  # nothing waits here
        return self._change_state(state, message, None, has_event=False)

    def finish(self, state: RunState, message: str, ended_unix_ns: int, *, has_event: bool = False) -> bool:
        return self._change_state(state, message, ended_unix_ns, has_event=has_event)

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002
        return self._write(durable=False)

    def _change_state(self, state: RunState, message: str, ended: int | None, *, has_event: bool) -> bool:
        severe = state in (RunState.FAILED, RunState.OUT_OF_MEMORY)
        severity = Severity.ERROR if severe else Severity.INFO
        label = state.replace("_", " ")
        event = EventRow(self._clock_ns(), 0, EventKind.STATE, severity, label, message, "{}", None)
        self._pending.states.append(StateChange(state, message, ended, None if has_event else event))
        return self._write(durable=True)

    def _write(self, *, durable: bool) -> bool:
        return self._pending.is_empty or self._keeper.write(self._pending, durable, lambda: True)


def record_end(
    files: RunFiles,
    device: Device,
    first_row: Callable[[], RunRow],
    settings: WatchSettings,
    inbox: Inbox,
    error: BaseException | None,
    outcome: Outcome,
    commands: CommandSource | None = None,
) -> None:
    """Record `outcome`, which `error` made, in the process's vital signs and in the log of the run, which
    `first_row` begins unless it exists. The frames of `error` are left as they are: its traceback is still to
    be printed. Raises HomeError if there can be no log."""
    is_full = error is not None and is_out_of_memory(error)
    signs = files.alive.signs
    signs.set_outcome(outcome.state, outcome.message)
    if is_full:
        signs.set_outcome(RunState.OUT_OF_MEMORY, f"Out of memory before the first step. {outcome.message}")
        device.lift_cap_for_recovery()
        gc.collect()
        attempt(device.empty_cache)
    folder, zero_ns = files.handle.steady, time.perf_counter_ns()

    def clock_ns() -> int:
        return time.perf_counter_ns() - zero_ns

    with ExitStack() as stack:
        path, row = files.handle.locate_log() or folder.log, first_row()
        locate, report = files.handle.locate_log, signs.set_unwritten
        keeper = LogKeeper(path, row, clock_ns, locate, report, Outbox(), may_exist=True)
        stack.callback(keeper.close)
        journal = _ThreadlessJournal(keeper, clock_ns)
        context = RunContext(device, journal, clock_ns, FailureGuard(_ignored), Progress(zero_ns), Marks())
        memory = MemoryWatch(device)
        reporter = OomReporter(context, memory, folder, settings, frozenset(json_object(row.settings)))
        recorder = OutcomeRecorder(
            context, memory, reporter, report=signs.set_outcome, prints_errors=False, releases_frames=False
        )
        if error is None:
            recorder.end(outcome)
        else:
            recorder.failed(error, None)
        poll = commands or CommandPoll(folder, inbox)
        stack.callback(poll.close)
        poll.poll()
        expire(inbox, context)


def _ignored(_name: str, _error: str) -> None:
    """Nothing runs under this guard."""

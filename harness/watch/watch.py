"""The watch of one training in this process: one object with one life, independent of the workload.

with Watch(files, device, run, settings) as watch:       # the log is open, commands are read
    model, optimizer = …
    with watch.observe(training) as steps:               # samplers run
        while steps.proceed(number):                     # step boundaries
            …
            steps.step_ended(…)
watch.state                                              # the outcome is in the log
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from harness.device.protocol import Device
from harness.files.plain_json import json_object
from harness.records.run import DeviceKind, RunRow, RunState
from harness.store.folder_handle import FolderHandle
from harness.store.liveness import Liveness
from harness.store.outbox import Outbox
from harness.store.writer import LogWriter
from harness.watch.boundary import Outcome, StepAction
from harness.watch.compiler import watching_compiler
from harness.watch.controller import expire
from harness.watch.dispatch import StepListener
from harness.watch.inbox import Inbox
from harness.watch.instruments import Instruments, open_instruments
from harness.watch.jobs.commands import CommandPoll
from harness.watch.jobs.folder import FolderWatch
from harness.watch.jobs.opening import open_jobs
from harness.watch.jobs.sampler import Job, Sampler, every
from harness.watch.oom.errors import attempt
from harness.watch.oom.reporter import OomReporter
from harness.watch.outcome import OutcomeRecorder
from harness.watch.steps import Steps
from harness.watch.tee import Feed
from harness.watch.training import Training, WatchSettings

COMMAND_PERIOD_S = 0.2
HEARTBEAT_PERIOD_S = 1.0


class RunFiles(NamedTuple):
    """The open folder of a run: its original path, its handle, and the lock on `alive`."""

    path: Path
    handle: FolderHandle
    alive: Liveness


class CommandSource(Protocol):
    """A source of commands, polled by the sampler."""

    def poll(self) -> None:
        """Put new commands into the inbox."""
        ...

    def close(self) -> None:
        """Close what it reads. Idempotent."""
        ...


class Pacing(NamedTuple):
    """The pace of a watch's threads: the samplers' clock, and the writer's feed. A benchmark pauses both."""

    clock_s: Callable[[], float] = time.monotonic
    feed: Callable[[Feed], Feed] = lambda feed: feed


REAL_PACING = Pacing()


class Watch:
    """Everything that watches one training: log, recorder, samplers, telemetry, memory, leaks, stalls,
    commands, snapshots, profiles, overhead, out-of-memory reports and outcome.

    Opened by its constructor; a context manager that records the outcome. Errors propagate.

    Attributes:
        context: shared by its parts; `context.journal` accepts further rows.
        folder: the original path of the run's folder.
        reporter: creates out-of-memory reports.
    """

    def __init__(
        self,
        files: RunFiles,
        device: Device,
        run: RunRow,
        settings: WatchSettings,
        inbox: Inbox | None = None,
        pacing: Pacing = REAL_PACING,
        *,
        commands: CommandSource | None = None,
        prints_errors: bool = True,
    ) -> None:
        """`run` begins the log, `settings` are those at the start of the run, and `inbox` receives a stop
        from signal handlers. `commands` puts commands into the inbox, by default those of the folder.
        `prints_errors` as for `OutcomeRecorder`. Raises HomeError if the log cannot be created."""
        self._inbox = inbox or Inbox()
        self._inbox.on_stop_caught = lambda: files.alive.signs.stop_caught(time.time_ns())
        self._pacing = pacing
        self.folder = files.path
        with ExitStack() as stack:
            self._instruments = self._open_instruments(stack, files, device, run)
            self.context, memory = self._instruments.context, self._instruments.memory
            names = frozenset(json_object(run.settings))
            self.reporter = OomReporter(self.context, memory, files.handle.steady, settings, names)
            self._outcome = OutcomeRecorder(
                self.context,
                memory,
                self.reporter,
                report=files.alive.signs.set_outcome,
                prints_errors=prints_errors,
            )
            # A script goes on without a watch that could not be opened, so that this is not its end.
            self._records_errors = prints_errors
            stack.push(self._record_error)
            self._begin_jobs(stack, files, commands or CommandPoll(files.handle.steady, self._inbox))
            stack.enter_context(watching_compiler(lambda text: self.context.warn("torch.compile", text)))
            self._stack = stack.pop_all()
            self._records_errors = True

    def _open_instruments(
        self, stack: ExitStack, files: RunFiles, device: Device, run: RunRow
    ) -> Instruments:
        """Open the log with the row `run`, and what feeds it; `stack` closes the log."""
        folder, alive, outbox = files.handle.steady, files.alive, Outbox()

        def open_log(feed: Feed, clock_ns: Callable[[], int]) -> LogWriter:
            return stack.enter_context(
                LogWriter(
                    files.handle.locate_log() or folder.log,
                    run,
                    self._pacing.feed(feed),
                    clock_ns,
                    locate=files.handle.locate_log,
                    report=alive.signs.set_unwritten,
                    outbox=outbox,
                )
            )

        return open_instruments(
            device,
            time.perf_counter_ns,
            self._inbox,
            folder.captures,
            outbox.put,
            open_log,
            is_behind=outbox.is_behind,
            step_finished=alive.signs.step_finished,
        )

    def _begin_jobs(self, stack: ExitStack, files: RunFiles, commands: CommandSource) -> None:
        """Begin the jobs of the whole run. At its end `stack` polls `commands` once more, answers those that
        are left, and closes their source."""
        context, inbox = self.context, self._inbox
        folder_watch = FolderWatch(files.handle.locate, files.path, inbox)
        stack.callback(commands.close)
        stack.callback(lambda: expire(inbox, context))
        stack.callback(lambda: context.guard.run("commands", commands.poll))
        jobs = [
            Job("heartbeat", every(HEARTBEAT_PERIOD_S), files.alive.beat),
            Job("folder watch", every(HEARTBEAT_PERIOD_S), folder_watch.check),
            Job("commands", every(COMMAND_PERIOD_S), commands.poll),
        ]
        stack.enter_context(Sampler(jobs, context.guard, self._pacing.clock_s))

    @property
    def state(self) -> RunState | None:
        """The state at the end of the run; None while it goes on."""
        return self._outcome.state

    @property
    def lost_folder(self) -> str | None:
        """The message about the deleted folder of the run; None while it exists."""
        return self._inbox.lost_folder

    def _record_error(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is not None and self._records_errors:
            self._outcome.failed(error, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    @contextmanager
    def observe(
        self,
        training: Training,
        actions: Sequence[StepAction] = (),
        listeners: Mapping[str, StepListener] | None = None,
        jobs: Sequence[Job] = (),
        end_in_time: Callable[[str], None] | None = None,
    ) -> Iterator[Steps]:
        """Watch the steps of `training` until the context ends, and record the outcome. Arguments as for
        `Steps`; `jobs` are further ones of the sampler. Once only."""
        context = self.context
        with ExitStack() as stack:
            # Last: the process may go on after any end, and its limit is its own again.
            stack.callback(attempt, context.device.lift_cap_for_recovery)
            steps = Steps(self._instruments, training, actions, listeners, end_in_time=end_in_time)
            stack.enter_context(self._outcome.recording(steps.subject, lambda: steps.outcome))
            stack.callback(steps.close)
            all_jobs = [
                *open_jobs(
                    stack,
                    self._instruments,
                    training,
                    lambda: steps.controller.is_paused,
                    lambda: steps.snapshots.hunt_result,
                ),
                *jobs,
            ]
            context.journal.set_state(RunState.RUNNING, "Training.", timeout_s=0)
            prepare = context.device.activate_in_background
            with Sampler(all_jobs, context.guard, self._pacing.clock_s, prepare):
                try:
                    yield steps
                except (RuntimeError, MemoryError):
                    if context.device.facts.kind is DeviceKind.CPU:
                        # The cleanup needs memory too, in every thread.
                        context.device.lift_cap_for_recovery()
                    raise
                context.device.synchronize()
            steps.unobserved.close()  # The outcome is after its steps.
            self._outcome.end(steps.outcome or Outcome(RunState.FINISHED, "The loop ended."))

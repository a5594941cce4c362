"""Starts, watches, steers and stops training processes, its own and those it finds.

Everything known of a run lies on disk, so a supervisor that comes later (a restarted dashboard, the shell)
picks runs up without any act of adoption. The one thing a parent alone learns is how its child ended; `reap`
puts that on disk too.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from harness.analysis.state import HEARTBEAT_LIMIT_S, RunStatus
from harness.device.selector import refuse_absent
from harness.errors import HomeError, LogError, ReadOnlyError, RunStateError, StepscopeError
from harness.identity import read_identity
from harness.records import AckRow, CommandKind, CommandRow
from harness.selection import check_fit
from harness.settings import Settings
from harness.store.control import BUSY_S, ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.children import Children, note
from harness.supervisor.commands import checked_changes, no_process_sentence
from harness.supervisor.escalation import Escalation, Patience, Stage
from harness.supervisor.inspection import Look, look, stop_asked_unix_ns
from harness.supervisor.launch import Spawn, spawn
from harness.supervisor.logs import LogCache
from harness.supervisor.orphans import Orphans
from harness.supervisor.processes import find_process
from harness.supervisor.signals import request_stacks, signal_run
from harness.supervisor.summary import RunSummary, summarise

# A stop asked for less than this ago is still being seen through; asking again changes nothing.
_ESCALATION_S = 45.0
# A stop that cannot be recorded is carried out by signals, so that it need not wait for a lock as long as
# other commands do.
_STOP_BUSY_S = 1.0


class Supervisor:
    """All runs of one home. Safe to use from any thread; several supervisors may share a home."""

    def __init__(
        self,
        home: Home,
        spawn: Spawn = spawn,
        clock_ns: Callable[[], int] = time.time_ns,
        patience: Patience = Patience(),  # noqa: B008  (immutable)
        *,
        is_read_only: bool = False,
    ) -> None:
        """`clock_ns` is wall time; `spawn` starts processes. With `is_read_only` runs are shown, and nothing
        is started, sent, signaled or deleted."""
        self.home = home
        self.is_read_only = is_read_only
        self._clock_ns = clock_ns
        self._patience = patience
        self._children = Children(spawn, clock_ns)
        self._orphans = Orphans()
        self._logs = LogCache()

    def start(self, name: str | None, settings: Settings, request_id: str | None = None) -> RunFolder:
        """Start a run and return its folder, once the process exists.

        The same `request_id` never starts a second run: one form sent ten times is one run. Raises
        SettingError (a device that is not there, too), UsageError (the name is taken), HomeError, and
        StepscopeError when no process can be started; in each case no folder is left behind.
        """
        self.check_may_write()
        check_fit(settings)
        refuse_absent(settings.device)
        self.home.check_writable()
        with self.home.starting():
            known = None if request_id is None else self._started_by(request_id)
            if known is not None:
                return known
            folder = self.home.create(name, settings, self._clock_ns(), request_id)
            try:
                self._children.train(folder)
            except StepscopeError:
                self.home.remove(folder)
                raise
        return folder

    def status(self, folder: RunFolder) -> RunStatus:
        """The run's state and a sentence. A process found not responding is asked, once, for its stacks."""
        seen = self._look(folder)
        is_silent = seen.heartbeat_age_s is not None and seen.heartbeat_age_s > HEARTBEAT_LIMIT_S
        if seen.is_locked and is_silent and not self.is_read_only and request_stacks(folder):
            note(folder, "not responding; its stacks were requested and follow")
        return seen.status

    def summary(self, folder: RunFolder) -> RunSummary:
        """One run in short."""
        return summarise(folder, self._look(folder))

    def runs(self) -> list[RunSummary]:
        """Every run of the home, newest first; a run that cannot be read is there with its problem."""
        return [self.summary(folder) for folder in self.home.runs()]

    def send(
        self,
        folder: RunFolder,
        kind: CommandKind,
        payload: Mapping[str, Any] | None = None,
        source: str = "api",
    ) -> str:
        """Leave a command for a live run and return its id; the run answers in its log.

        Raises SettingError for a setting that does not exist, cannot change while running or cannot have
        that value, and RunStateError when nobody is there to obey.
        """
        self.check_may_write()
        values = dict(payload or {})
        seen = self._look(folder)
        if seen.status.state.is_over or not seen.has_process:
            raise RunStateError(no_process_sentence(folder, seen, kind))
        if kind is CommandKind.SET:
            values = checked_changes(values)
        command = CommandRow(uuid.uuid4().hex, self._clock_ns(), kind, json.dumps(values), source)
        with ControlLog(folder, _STOP_BUSY_S if kind is CommandKind.STOP else BUSY_S) as control:
            control.send(command)
        return command.command_id

    def send_stop(self, folder: RunFolder, source: str) -> str | None:
        """Send the stop command; None, or why it cannot be sent (a full disk, a locked or damaged file).
        Raises RunStateError when there is no process."""
        try:
            self.send(folder, CommandKind.STOP, source=source)
        except (HomeError, LogError) as error:
            return str(error)
        return None

    def answer(self, folder: RunFolder, command_id: str) -> AckRow | None:
        """What the run last said to a command; None: nothing yet, or its log cannot be read."""
        try:
            with LogReader(folder.log) as reader:
                return next((ack for ack in reversed(reader.acks()) if ack.command_id == command_id), None)
        except LogError:
            return None

    def request_stop(self, folder: RunFolder, source: str = "dashboard") -> str | None:
        """Request the run to stop and return at once; None, or why the stop command could not be sent, so
        that signals end the run instead.

        A detached helper (`stepscope stop RUN --escalate`) sees it through: unlike a thread it survives the
        dashboard being closed or killed within the next 40 s. Asking again meanwhile changes nothing. Raises
        RunStateError when there is no process, StepscopeError when no helper can be started.
        """
        self.check_may_write()
        if self._is_being_stopped(folder):
            return None
        undelivered = self.send_stop(folder, source)
        self._children.see_stop_through(folder, undelivered)
        return undelivered

    def stop(
        self,
        folder: RunFolder,
        source: str = "shell",
        tell: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Stage:
        """Stop the run and wait for its end, 40 s at the most. `tell` hears of each escalation. Where the
        stop command cannot be sent, signals end the run. Raises RunStateError when there is no process."""
        self.check_may_write()
        undelivered = None if self._is_being_stopped(folder) else self.send_stop(folder, source)
        return self.escalation(folder, tell, undelivered).run(sleep)

    def escalation(
        self,
        folder: RunFolder,
        tell: Callable[[str], None] | None = None,
        undelivered: str | None = None,
    ) -> Escalation:
        """The escalation of a stop that has been requested. It also speaks in the run's output.
        `undelivered` says why the stop command could not be sent."""

        def speak(text: str) -> None:
            note(folder, text)
            if tell is not None:
                tell(text)

        def is_gone() -> bool:
            self.reap()
            return find_process(folder) is None and not self._children.view(folder).is_child

        return Escalation(
            is_gone=is_gone,
            send_signal=lambda number: signal_run(folder, number),
            clock=time.monotonic,
            note=speak,
            patience=self._patience,
            undelivered=undelivered,
        )

    def delete(self, folder: RunFolder) -> None:
        """Delete a run that has ended, for good. Raises RunStateError while it has a process at work."""
        self.check_may_write()
        seen = self._look(folder)
        simulated = seen.log.run is not None and seen.log.run.simulated
        if seen.status.state.is_over and seen.is_locked:
            raise RunStateError(f"{seen.request.name!r} is closing its log; try again in a moment.")
        if not seen.status.state.is_over and not simulated:
            raise RunStateError(
                f"{seen.request.name!r} is still {seen.status.state.value}, so it cannot be deleted; "
                f"stop it first: stepscope stop {folder.run_id}"
            )
        self.home.remove(folder)
        self._logs.forget(folder)

    def check_may_write(self) -> None:
        """Raise ReadOnlyError when this supervisor only shows runs."""
        if self.is_read_only:
            raise ReadOnlyError

    def reap(self) -> None:
        """Record how our own children ended, and runs that we adopted because their parent ended first."""
        self._children.reap()
        for folder, pid, returncode in self._orphans.reap(self._runs_by_pid, self._children.pids):
            self._children.record(folder, pid, returncode)

    def _look(self, folder: RunFolder) -> Look:
        self.reap()
        return look(folder, self._logs, self._clock_ns() / 1e9, self._children.view(folder))

    def _is_being_stopped(self, folder: RunFolder) -> bool:
        if self._children.view(folder).is_stopping:
            return True
        try:
            with ControlLog(folder) as control:
                requested_unix_ns = stop_asked_unix_ns(control)
        except LogError:
            return False
        return requested_unix_ns is not None and self._clock_ns() - requested_unix_ns < _ESCALATION_S * 1e9

    def _runs_by_pid(self) -> dict[int, RunFolder]:
        identities = ((folder, read_identity(folder.process)) for folder in self.home.runs())
        return {identity.pid: folder for folder, identity in identities if identity is not None}

    def _started_by(self, request_id: str) -> RunFolder | None:
        return next((f for f in self.home.runs() if f.request().request_id == request_id), None)

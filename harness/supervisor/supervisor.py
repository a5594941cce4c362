"""Starts, monitors, controls and stops the training processes of a home.

The state of a run is on disk, so a later supervisor (a restarted dashboard, the shell) can use it without
adoption. Only a parent can observe the exit of its child; `reap` writes that to disk too.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from harness.analysis.state import HEARTBEAT_LIMIT_S, RunStatus
from harness.device.selector import refuse_absent
from harness.errors import HomeError, LogError, ReadOnlyError, RunStateError, StepscopeError
from harness.identity import read_identity
from harness.records.entry import RunEntry
from harness.records.ranks import RankPart
from harness.records.remote import RemoteRequest
from harness.records.run import AckRow, CommandKind, CommandRow
from harness.records.script import ScriptOrigin
from harness.settings import Settings
from harness.settings.resolve import check_fit, check_processes
from harness.store.control import BUSY_S, ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.labels import read_labels
from harness.store.reader import LogReader
from harness.store.run_index import RunIndex
from harness.store.vital_signs import read_vital_signs
from harness.supervisor.children import Children, note
from harness.supervisor.commands import checked_changes, declared_settings, no_process_sentence
from harness.supervisor.escalation import Escalation, EscalationStage, Patience
from harness.supervisor.inspection import (
    RunInspection,
    caught_stops,
    inspect_run,
    stop_requested_unix_ns,
)
from harness.supervisor.launch import Spawn, spawn
from harness.supervisor.logs import LogCache
from harness.supervisor.orphans import Orphans
from harness.supervisor.processes import find_process
from harness.supervisor.signals import request_stacks, signal_run
from harness.supervisor.summary import RunSummary, summarize_run

# A stop that was requested less than this ago is still in progress; a second request has no effect.
_ESCALATION_S = 45.0
# A script's own clean-up runs after a stop: saving a checkpoint, a last evaluation. Only then it is signaled.
SCRIPT_CLEAN_UP_S = 600.0
# A stop that cannot be recorded is done by signals, so it waits for a lock for a shorter time than other
# commands.
_STOP_BUSY_S = 1.0


class Supervisor:
    """All runs of one home. Thread-safe; several supervisors may share a home."""

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
        self._index = RunIndex(home, is_read_only=is_read_only)

    def start(
        self,
        name: str | None,
        settings: Settings,
        request_id: str | None = None,
        remote: RemoteRequest | None = None,
        ranks: int = 1,
    ) -> RunFolder:
        """Start a run and return its folder, once the process exists: of a `remote` run its collector, of one
        of several `ranks` the process that starts them.

        The same `request_id` never starts a second run: a form sent ten times is one run. Raises SettingError
        (also for an absent device), UsageError (the name is taken), HomeError, and StepscopeError when no
        process can be started; in each case no folder remains.
        """
        self.check_may_write()
        check_fit(settings)
        check_processes(settings, ranks)
        if remote is None:
            refuse_absent(settings.device)
        return self._start_once(
            request_id,
            lambda: self.home.create(name, settings, self._clock_ns(), request_id, remote, RankPart(ranks)),
            self._children.train,
        )

    def start_script(
        self,
        name: str | None,
        origin: ScriptOrigin,
        request_id: str | None = None,
        variables: Mapping[str, str] = MappingProxyType({}),
        remote: RemoteRequest | None = None,
    ) -> RunFolder:
        """Start a run of a script, in its own folder with `variables` in its environment; its output goes to
        the run's folder. A `remote` one has the environment of its node. As `start`."""
        self.check_may_write()
        return self._start_once(
            request_id,
            lambda: self.home.create_for_script(name, origin, self._clock_ns(), request_id, remote=remote),
            self._children.train if remote else lambda f: self._children.run_script(f, origin, variables),
        )

    def status(self, folder: RunFolder) -> RunStatus:
        """Return the run's state with a sentence. Requests the stacks, once, of a process that does not
        respond."""
        inspection = self._inspect(folder)
        is_unresponsive = (
            inspection.heartbeat_age_s is not None and inspection.heartbeat_age_s > HEARTBEAT_LIMIT_S
        )
        if inspection.is_locked and is_unresponsive and not self.is_read_only and request_stacks(folder):
            note(folder, "not responding; its stacks were requested and follow")
        return inspection.status

    def summary(self, folder: RunFolder) -> RunSummary:
        """Return the summary of one run."""
        return summarize_run(folder, self._inspect(folder))

    def runs(self) -> list[RunSummary]:
        """Return all runs of the home, the newest first; an unreadable run has a problem."""
        return [self.summary(folder) for folder in self.home.runs()]

    def entry(self, folder: RunFolder) -> RunEntry:
        """Return one run as plain values, with its labels."""
        return self.summary(folder).entry(read_labels(folder))

    def entries(self) -> list[RunEntry]:
        """Return all runs of the home as plain values, the newest first. Runs that have ended are from the
        home's cached list; an unreadable run has a problem. Raises HomeError."""
        self.reap()
        return self._index.entries(self.entry)

    def send(
        self,
        folder: RunFolder,
        kind: CommandKind,
        payload: Mapping[str, Any] | None = None,
        source: str = "api",
    ) -> str:
        """Send a command to a live run and return its id; the run acknowledges it in its log.

        Raises SettingError for a setting that does not exist, is fixed or cannot have that value, LogError
        when the settings of the run's script are needed and cannot be read, and RunStateError when the run
        has no process.
        """
        self.check_may_write()
        values = dict(payload or {})
        inspection = self._inspect(folder)
        if inspection.status.state.is_over or not inspection.has_process:
            raise RunStateError(no_process_sentence(folder, inspection, kind))
        declared = None if inspection.request.script is None else partial(declared_settings, folder)
        if kind is CommandKind.SET:
            values = checked_changes(values, declared)
        if kind is CommandKind.MEASURE:
            values["settings"] = checked_changes(values.get("settings") or {}, declared)
        command = CommandRow(uuid.uuid4().hex, self._clock_ns(), kind, json.dumps(values), source)
        with ControlLog(folder, _STOP_BUSY_S if kind is CommandKind.STOP else BUSY_S) as control:
            control.send(command)
        return command.command_id

    def send_stop(self, folder: RunFolder, source: str) -> str | None:
        """Send the stop command; return None, or the reason that it cannot be sent (a full disk, a locked or
        damaged file). Raises RunStateError when there is no process."""
        try:
            self.send(folder, CommandKind.STOP, source=source)
        except (HomeError, LogError) as error:
            return str(error)
        return None

    def answer(self, folder: RunFolder, command_id: str) -> AckRow | None:
        """Return the run's last acknowledgment of a command; None: none yet, or an unreadable log."""
        try:
            with LogReader(folder.log) as reader:
                return next((ack for ack in reversed(reader.acks()) if ack.command_id == command_id), None)
        except LogError:
            return None

    def request_stop(self, folder: RunFolder, source: str = "dashboard") -> str | None:
        """Request the run to stop and return at once: None, or the reason that the stop command could not be
        sent, so that signals end the run instead.

        A detached helper (`stepscope stop RUN --escalate`) completes the stop: unlike a thread it survives a
        dashboard that is closed or killed within the next 40 s. A second request meanwhile has no effect.
        Raises RunStateError when there is no process, StepscopeError when no helper can be started.
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
        announce: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> EscalationStage:
        """Stop the run and wait for its end, at most 40 s, or ten minutes more for a script. `announce` takes
        a sentence per escalation. If the stop command cannot be sent, signals end the run. Raises
        RunStateError when there is no process."""
        self.check_may_write()
        undelivered = None if self._is_being_stopped(folder) else self.send_stop(folder, source)
        return self.escalation(folder, announce, undelivered).run(sleep)

    def escalation(
        self,
        folder: RunFolder,
        announce: Callable[[str], None] | None = None,
        undelivered: str | None = None,
    ) -> Escalation:
        """Return the escalation of a requested stop, which also writes to the run's output. `undelivered` is
        the reason that the stop command could not be sent."""

        def report(text: str) -> None:
            note(folder, text)
            if announce is not None:
                announce(text)

        def is_gone() -> bool:
            self.reap()
            return find_process(folder) is None and not self._children.view(folder).is_child

        return Escalation(
            is_gone=is_gone,
            send_signal=lambda number: signal_run(folder, number),
            clock=time.monotonic,
            note=report,
            patience=self._patience_with(folder),
            undelivered=undelivered,
            caught_stops=lambda: _caught_stops(folder),
        )

    def delete(self, folder: RunFolder) -> None:
        """Delete a run that has ended, permanently. Raises RunStateError while its process runs."""
        self.check_may_write()
        inspection = self._inspect(folder)
        simulated = inspection.log.run is not None and inspection.log.run.simulated
        if inspection.status.state.is_over and inspection.is_locked:
            raise RunStateError(f"{inspection.request.name!r} is closing its log; try again in a moment.")
        if not inspection.status.state.is_over and not simulated:
            raise RunStateError(
                f"{inspection.request.name!r} is still {inspection.status.state.value}, so it cannot be "
                f"deleted; stop it first: stepscope stop {folder.run_id}"
            )
        self.home.remove(folder)
        self._logs.forget(folder)

    def check_may_write(self) -> None:
        """Raise ReadOnlyError when this supervisor is read-only."""
        if self.is_read_only:
            raise ReadOnlyError

    def reap(self) -> None:
        """Record the exits of children, and of adopted runs whose parent ended first."""
        self._children.reap()
        for folder, pid, returncode in self._orphans.reap(self._runs_by_pid, self._children.pids):
            self._children.record(folder, pid, returncode)

    def _inspect(self, folder: RunFolder) -> RunInspection:
        self.reap()
        return inspect_run(folder, self._logs, self._clock_ns() / 1e9, self._children.view(folder))

    def _patience_with(self, folder: RunFolder) -> Patience:
        is_script = folder.request().script is not None
        return self._patience._replace(request_s=SCRIPT_CLEAN_UP_S) if is_script else self._patience

    def _is_being_stopped(self, folder: RunFolder) -> bool:
        if _caught_stops(folder):
            return False
        if self._children.view(folder).is_stopping:
            return True
        requested_unix_ns = _stop_requested_unix_ns(folder)
        return requested_unix_ns is not None and self._clock_ns() - requested_unix_ns < _ESCALATION_S * 1e9

    def _runs_by_pid(self) -> dict[int, RunFolder]:
        identities = ((folder, read_identity(folder.process)) for folder in self.home.runs())
        return {identity.pid: folder for folder, identity in identities if identity is not None}

    def _start_once(
        self, request_id: str | None, create: Callable[[], RunFolder], launch: Callable[[RunFolder], None]
    ) -> RunFolder:
        """Create the folder of a run and launch its process, unless `request_id` has a run already."""
        self.home.check_writable()
        with self.home.starting():
            existing = None if request_id is None else self._started_by(request_id)
            if existing is not None:
                return existing
            folder = create()
            try:
                launch(folder)
            except StepscopeError:
                self.home.remove(folder)
                raise
        return folder

    def _started_by(self, request_id: str) -> RunFolder | None:
        return next((f for f in self.home.runs() if f.request().request_id == request_id), None)


def _caught_stops(folder: RunFolder) -> int:
    signs = read_vital_signs(folder.alive)
    if signs is None or not signs.stops_caught:
        return 0
    return caught_stops(signs, _stop_requested_unix_ns(folder))


def _stop_requested_unix_ns(folder: RunFolder) -> int | None:
    try:
        with ControlLog(folder) as control:
            return stop_requested_unix_ns(control)
    except LogError:
        return None

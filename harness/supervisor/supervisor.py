"""Starts, watches, steers and stops training processes, its own and those it finds.

Everything known of a run lies on disk, so a supervisor that comes later (a restarted dashboard, the shell)
picks runs up without any act of adoption. The one thing a parent alone learns is how its child ended; `reap`
puts that on disk too.
"""

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from harness.analysis.state import HEARTBEAT_LIMIT_S, RunStatus
from harness.config import parse, spec_of
from harness.device.selector import refuse_absent
from harness.errors import LogError, RunStateError, SettingError, StepscopeError
from harness.records import AckRow, CommandKind, CommandRow
from harness.selection import check_fit
from harness.settings import Settings
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.children import Children, note
from harness.supervisor.escalation import Escalation, Patience, Stage
from harness.supervisor.inspection import Look, has_process, look, stop_asked_unix_ns
from harness.supervisor.launch import Spawn, spawn
from harness.supervisor.logs import LogCache
from harness.supervisor.signals import Kill, ask_for_stacks, signal_run
from harness.supervisor.summary import RunSummary, summarise

_ESCALATION_S = 45.0
"""A stop asked for less than this ago is still being seen through; asking again changes nothing."""
_DEEDS = {
    CommandKind.SET: "change settings of",
    CommandKind.EMPTY_CACHE: "empty the cache of",
    CommandKind.SNAPSHOT: "take a snapshot of",
    CommandKind.PROFILE: "profile",
    CommandKind.PAUSE: "pause",
    CommandKind.RESUME: "resume",
    CommandKind.STOP: "stop",
}
_STACKS_MARK = "stacks-asked"


class Supervisor:
    """All runs of one home. Safe to use from any thread; several supervisors may share a home."""

    def __init__(
        self,
        home: Home,
        spawn: Spawn = spawn,
        clock_ns: Callable[[], int] = time.time_ns,
        kill: Kill = os.kill,
        patience: Patience = Patience(),  # noqa: B008  (immutable)
    ) -> None:
        """`clock_ns` is wall time; `spawn` and `kill` start and signal processes."""
        self.home = home
        self._clock_ns = clock_ns
        self._kill = kill
        self._patience = patience
        self._children = Children(spawn, clock_ns)
        self._logs = LogCache()

    def start(self, name: str | None, settings: Settings, request_id: str | None = None) -> RunFolder:
        """Start a run and return its folder, once the process exists.

        The same `request_id` never starts a second run: one form sent ten times is one run. Raises
        SettingError (a device that is not there, too), UsageError (the name is taken), HomeError, and
        StepscopeError when no process can be started; in each case no folder is left behind.
        """
        check_fit(settings)
        refuse_absent(settings.device)
        self.home.check_writable()
        with self._starting():
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
        if seen.is_locked and seen.heartbeat_age_s is not None and seen.heartbeat_age_s > HEARTBEAT_LIMIT_S:
            self._ask_for_stacks(folder)
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
        values = dict(payload or {})
        seen = self._look(folder)
        if seen.status.state.is_over or not seen.has_process:
            simulated = seen.log.run is not None and seen.log.run.simulated
            why = "simulated" if simulated else seen.status.state.value.replace("_", " ")
            raise RunStateError(
                f"{seen.request.name!r} is {why}: there is no process to {_DEEDS[kind]}. "
                "`stepscope list` shows which runs are live."
            )
        if kind is CommandKind.SET:
            values = _checked(values)
        command = CommandRow(uuid.uuid4().hex, self._clock_ns(), kind, json.dumps(values), source)
        with ControlLog(folder) as control:
            control.send(command)
        return command.command_id

    def answer(self, folder: RunFolder, command_id: str) -> AckRow | None:
        """What the run last said to a command; None: nothing yet, or its log cannot be read."""
        try:
            with LogReader(folder.log) as reader:
                return next((ack for ack in reversed(reader.acks()) if ack.command_id == command_id), None)
        except LogError:
            return None

    def request_stop(self, folder: RunFolder, source: str = "dashboard") -> None:
        """Ask the run to stop and return at once.

        A detached helper (`stepscope stop RUN --escalate`) sees it through: unlike a thread it survives the
        dashboard being closed or killed within the next 40 s. Asking again meanwhile changes nothing.
        """
        if self._is_being_stopped(folder):
            return
        self.send(folder, CommandKind.STOP, source=source)
        self._children.see_stop_through(folder)

    def stop(
        self,
        folder: RunFolder,
        source: str = "shell",
        tell: Callable[[str], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Stage:
        """Stop the run and wait for its end, 40 s at the most. `tell` hears of each escalation."""
        if not self._is_being_stopped(folder):
            self.send(folder, CommandKind.STOP, source=source)
        return self.escalation(folder, tell).run(sleep)

    def escalation(self, folder: RunFolder, tell: Callable[[str], None] | None = None) -> Escalation:
        """The escalation of a stop that has been asked for. It also speaks in the run's output."""

        def speak(text: str) -> None:
            note(folder, text)
            if tell is not None:
                tell(text)

        def is_gone() -> bool:
            self.reap()
            return not has_process(folder) and not self._children.has(folder)

        return Escalation(
            is_gone=is_gone,
            send_signal=lambda number: signal_run(folder, number, self._kill),
            clock=time.monotonic,
            note=speak,
            patience=self._patience,
        )

    def delete(self, folder: RunFolder) -> None:
        """Delete a run that has ended, for good. Raises RunStateError while it has a process at work."""
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

    def reap(self) -> None:
        """Record how our own children ended. Never waits."""
        self._children.reap()

    def _look(self, folder: RunFolder) -> Look:
        self.reap()
        own = self._children.has(folder)
        return look(folder, self._logs, self._clock_ns() / 1e9, is_own_child=own)

    def _is_being_stopped(self, folder: RunFolder) -> bool:
        try:
            with ControlLog(folder) as control:
                asked_unix_ns = stop_asked_unix_ns(control)
        except LogError:
            return False
        return asked_unix_ns is not None and self._clock_ns() - asked_unix_ns < _ESCALATION_S * 1e9

    def _started_by(self, request_id: str) -> RunFolder | None:
        return next((f for f in self.home.runs() if f.request().request_id == request_id), None)

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Starts in one home come one after the other, from all its supervisors."""
        with (self.home.path / ".starting").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _ask_for_stacks(self, folder: RunFolder) -> None:
        """Ask once per stall, whichever supervisor notices it: the mark is as old as the last heartbeat."""
        mark = folder.path / _STACKS_MARK
        try:
            beat_ns = folder.alive.stat().st_mtime_ns
            if mark.exists() and mark.stat().st_mtime_ns == beat_ns:
                return
            mark.touch()
            os.utime(mark, ns=(beat_ns, beat_ns))
        except OSError:
            return
        if ask_for_stacks(folder, self._kill):
            note(folder, "not responding; its stacks were asked for and follow")


def _checked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of settings that can be sent. Raises SettingError; the harness checks them again."""
    if not values:
        raise SettingError("", "Nothing to set: give name=value.")
    for name in values:
        spec = spec_of(name)
        if not spec.is_live:
            raise SettingError(
                spec.name, f"{spec.name} cannot change while a run goes on; start a new run with it."
            )
    checked = parse(values).model_dump(mode="json")
    return {spec_of(name).name: checked[spec_of(name).name] for name in values}

"""The child processes of this supervisor, and their exits, which only a parent can observe."""

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from harness.errors import StepscopeError
from harness.files.regular import open_regular
from harness.identity import identify, new_nonce, write_identity
from harness.records.run import ExitRow
from harness.records.script import ScriptOrigin
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.supervisor.launch import (
    Process,
    Spawn,
    child_environment,
    script_command,
    stop_command,
    training_command,
)

# Pages wait while an exit is recorded.
_BUSY_S = 0.5
_RETRY_S = 3.0


class _Child(NamedTuple):
    """A training process, or the helper that stops one; the exit of a helper is not recorded."""

    folder: RunFolder
    process: Process
    is_helper: bool = False


class OwnView(NamedTuple):
    """A supervisor's view of a run as the parent of its processes."""

    # True when the training process is a child of this process and has not been reaped.
    is_child: bool
    # True while a helper of this supervisor is stopping the run.
    is_stopping: bool
    # True when a helper of this supervisor is stopping the run or has stopped it, even without a stop
    # command.
    is_stop_requested: bool
    # The exit of the training process, while it cannot be written to the control file (a full disk, a lock).
    unrecorded_exit: ExitRow | None


class Children:
    """Starts children and records their exits in the run's control file. Thread-safe."""

    def __init__(self, spawn: Spawn, clock_ns: Callable[[], int]) -> None:
        self._spawn = spawn
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._children: dict[int, _Child] = {}
        self._unrecorded: dict[RunFolder, ExitRow] = {}
        self._retry_s = 0.0
        self._stopped: set[RunFolder] = set()

    def train(self, folder: RunFolder) -> None:
        """Start the training process of `folder` and write its identity. Raises StepscopeError."""
        nonce = new_nonce()
        process = self._start(folder, training_command(folder), nonce, folder.output)
        self._watch(_Child(folder, process))
        identity = identify(process.pid, nonce)
        if identity is not None:
            with suppress(OSError):  # On a full disk the process itself ends with the reason.
                write_identity(folder.process, identity)

    def run_script(self, folder: RunFolder, origin: ScriptOrigin, variables: Mapping[str, str]) -> None:
        """Start the script of `folder`, with `variables` in its environment. Raises StepscopeError."""
        command = script_command(folder, origin)
        self._watch(_Child(folder, self._start(folder, command, new_nonce(), folder.output, variables)))

    def see_stop_through(self, folder: RunFolder, undelivered: str | None = None) -> None:
        """Start the helper that escalates a stop; it outlives this process. `undelivered` is the reason that
        the stop command could not be sent. Raises StepscopeError."""
        command, nonce = stop_command(folder, undelivered), new_nonce()
        try:
            process = self._start(folder, command, nonce, folder.output)
        except StepscopeError:
            # On a full or read-only disk the stop matters more than its output.
            process = self._start(folder, command, nonce, Path(os.devnull))
        with self._lock:
            self._stopped.add(folder)
        self._watch(_Child(folder, process, is_helper=True))

    def view(self, folder: RunFolder) -> OwnView:
        """Return the view of the run as the parent of its processes."""
        with self._lock:
            roles = {child.is_helper for child in self._children.values() if child.folder == folder}
            return OwnView(
                False in roles, True in roles, folder in self._stopped, self._unrecorded.get(folder)
            )

    def reap(self) -> None:
        """Record the exit of every child that has ended. Waits only for the lock of a control file, at most
        half a second in every three."""
        with self._lock:
            ended = [
                (pid, code) for pid, c in self._children.items() if (code := c.process.poll()) is not None
            ]
            for pid, code in ended:
                folder, _, is_helper = self._children.pop(pid)
                if not is_helper:
                    self._unrecorded[folder] = ExitRow(pid, self._clock_ns(), code)
            if self._unrecorded and (ended or time.monotonic() >= self._retry_s):
                self._record({pid for pid, _ in ended})

    @property
    def pids(self) -> set[int]:
        """The pids of the children."""
        with self._lock:
            return set(self._children)

    def record(self, folder: RunFolder, pid: int, returncode: int) -> None:
        """Record the exit of a training process that this process adopted after its parent's exit."""
        with self._lock:
            self._unrecorded[folder] = ExitRow(pid, self._clock_ns(), returncode)
            self._record({pid})

    def _start(
        self,
        folder: RunFolder,
        command: list[str],
        nonce: str,
        output: Path,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> Process:
        try:
            return self._spawn(command, child_environment(os.environ, nonce) | dict(variables), output)
        except OSError as error:
            raise StepscopeError(
                f"No process could be started for {folder.run_id}: {error.strerror or error}; "
                "close other programs or check the limit on processes (ulimit -u)."
            ) from error

    def _watch(self, child: _Child) -> None:
        with self._lock:
            self._children[child.process.pid] = child
        threading.Thread(
            target=self._wait_for, args=(child.process,), name="stepscope-reaper", daemon=True
        ).start()

    def _wait_for(self, process: Process) -> None:
        """Wait for one child, so that its exit is recorded even without an open page."""
        process.wait()
        self.reap()

    def _record(self, ended: set[int]) -> None:
        """Write the exits that are not recorded yet; failed writes are retried later. `ended` are the
        processes that have just ended."""
        for folder, row in list(self._unrecorded.items()):
            try:
                if folder.path.exists():
                    ControlLog(folder, _BUSY_S).record_exit(row)
            except StepscopeError as error:
                self._retry_s = time.monotonic() + _RETRY_S
                if row.pid in ended:
                    note(folder, f"its exit (code {row.returncode}) could not be recorded yet: {error}")
            else:
                del self._unrecorded[folder]


def note(folder: RunFolder, text: str) -> None:
    """Append one line to the run's output, if possible."""
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with os.fdopen(open_regular(folder.output, flags), "a", encoding="utf-8") as stream:
            stream.write(f"[stepscope] {text}\n")
    except OSError:
        return

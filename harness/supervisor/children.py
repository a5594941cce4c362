"""The processes this supervisor started, and how they ended: the one thing that only a parent learns."""

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from harness.errors import StepscopeError
from harness.identity import identify, new_nonce, write_identity
from harness.records import ExitRow
from harness.regular_files import open_regular
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.supervisor.launch import Process, Spawn, child_environment, stop_command, training_command


class _Child(NamedTuple):
    """`folder` None: a helper, whose end interests nobody."""

    folder: RunFolder | None
    process: Process


class Children:
    """Starts children and records their ends in the run's control file. Safe to use from any thread."""

    def __init__(self, spawn: Spawn, clock_ns: Callable[[], int]) -> None:
        self._spawn = spawn
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._children: dict[int, _Child] = {}

    def train(self, folder: RunFolder) -> None:
        """Start the training process of `folder` and note its identity. Raises StepscopeError."""
        nonce = new_nonce()
        process = self._start(folder, training_command(folder), nonce)
        identity = identify(process.pid, nonce)
        if identity is not None:
            write_identity(folder.process, identity)
        self._watch(_Child(folder, process))

    def see_stop_through(self, folder: RunFolder) -> None:
        """Start the helper that escalates a stop; it outlives this process. Raises StepscopeError."""
        self._watch(_Child(None, self._start(folder, stop_command(folder), new_nonce())))

    def has(self, folder: RunFolder) -> bool:
        """Whether the training process of `folder` is our child and has not been seen to end."""
        with self._lock:
            return any(child.folder == folder for child in self._children.values())

    def reap(self) -> None:
        """Take note of every child that has ended. Never waits."""
        with self._lock:
            ended = [
                (pid, code) for pid, c in self._children.items() if (code := c.process.poll()) is not None
            ]
            for pid, code in ended:
                self._record(pid, code)

    def _start(self, folder: RunFolder, command: list[str], nonce: str) -> Process:
        try:
            return self._spawn(command, child_environment(os.environ, nonce), folder.output)
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
        """Wait for one child, so that its end is on record even when nobody looks at the page."""
        process.wait()
        self.reap()

    def _record(self, pid: int, returncode: int) -> None:
        folder = self._children.pop(pid).folder
        if folder is None or not folder.path.exists():
            return
        try:
            ControlLog(folder).record_exit(ExitRow(pid, self._clock_ns(), returncode))
        except StepscopeError as error:
            note(folder, f"its end (code {returncode}) could not be recorded: {error}")


def note(folder: RunFolder, text: str) -> None:
    """Append one line of the supervisor's to the run's output, where it can."""
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with os.fdopen(open_regular(folder.output, flags), "a", encoding="utf-8") as stream:
            stream.write(f"[stepscope] {text}\n")
    except OSError:
        return

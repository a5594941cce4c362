"""A home whose supervisor starts stand-ins for the training process, and a bounded wait."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from harness.analysis.state import RunStatus
from harness.errors import LogMissingError
from harness.identity import start_ticks
from harness.records.run import RunState
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Patience, Supervisor
from harness.supervisor.launch import Process, spawn

ROOT = Path(__file__).parents[1]
SETTINGS = resolve({"model": "mlp"})
PATIENCE_S = 120.0
"""How long a test waits for what must come: a machine busy with other tests takes its time."""
PATIENT = Patience(PATIENCE_S, PATIENCE_S, PATIENCE_S)
"""A process that obeys is never signalled, however busy the machine."""
IMPATIENT = Patience(request_s=0.3, terminated_s=0.3, killed_s=PATIENCE_S)
"""For one that is deaf."""

T = TypeVar("T")


def until(query: Callable[[], T], good: Callable[[T], bool], limit_s: float = PATIENCE_S) -> T:
    """Return what `look` finds once it is good; fails when it does not become so in time."""
    deadline_s = time.monotonic() + limit_s
    while not good(result := query()):
        assert time.monotonic() < deadline_s, result
        time.sleep(0.02)
    return result


def last_step(folder: RunFolder) -> int:
    """The last step in the run's log; 0 without one."""
    try:
        with LogReader(folder.log) as log:
            return log.extent().last or 0
    except LogMissingError:
        return 0


_HOLD = """
import subprocess, sys
from pathlib import Path
from harness.store.liveness import Liveness
with Liveness.hold(Path(sys.argv[1])):
    worker = subprocess.Popen(["sleep", "600"])
    print(worker.pid, flush=True)
    sys.stdin.read()
"""


@contextmanager
def lock_holder_process(path: Path, leads_group: bool = True) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the lock on `path`, and its worker's pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=leads_group,
    )
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    try:
        yield process, worker
    finally:
        if start_ticks(worker) is not None:
            os.kill(worker, signal.SIGKILL)
        process.kill()
        process.communicate()


class SupervisorBench:
    """A home with a supervisor; `start` takes the stand-in's mode (see `tests.fake_training`)."""

    def __init__(self, path: Path) -> None:
        self.home = Home(path)
        self.mode = "obey"
        self.commands: list[list[str]] = []
        self.processes: list[Process] = []
        self.supervisor = self.another()

    def another(self, patience: Patience = PATIENT) -> Supervisor:
        """One more supervisor of the same home, as of a restarted dashboard: parent of nothing yet."""
        return Supervisor(self.home, spawn=self.spawn, patience=patience)

    def spawn(self, command: list[str], environ: Mapping[str, str], output: Path) -> Process:
        self.commands.append(command)
        if "_run" in command:
            script = str(ROOT / "tests" / "fake_training.py")
            command = [sys.executable, "-P", script, self.mode, *command[-4:]]
        process = spawn(command, {**environ, "PYTHONPATH": str(ROOT)}, output)
        self.processes.append(process)
        return process

    def start(self, mode: str, name: str | None = None) -> RunFolder:
        self.mode = mode
        return self.supervisor.start(name, SETTINGS)

    def wait_for(
        self, folder: RunFolder, *states: RunState, supervisor: Supervisor | None = None
    ) -> RunStatus:
        watcher = supervisor or self.supervisor
        return until(lambda: watcher.status(folder), lambda status: status.state in states)

    def close(self) -> None:
        """End what is left of the stand-ins, each by its own id."""
        for process in self.processes:
            if process.poll() is None and hasattr(process, "kill"):
                process.kill()
            process.wait()

"""A dashboard as a person starts it, `streamlit run dashboard/app.py` by default, with a home of its own."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import psutil

from harness.records.run import RunState
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor
from harness.supervisor.processes import find_process
from harness.supervisor.signals import signal_run
from tests.ports import free_port
from tests.supervision import PATIENCE_S, until
from tests.warm_start import fork_training

ROOT = Path(__file__).parents[2]
LIGHT: dict[str, Any] = {"model": "mlp", "slow_loader_ms": 40.0}
"""Settings of a real run that leaves the machine free for the browser: about 23 steps per second."""


def streamlit_run(port: int) -> list[str]:
    """The command of the README, in the repository's own folder."""
    return [sys.executable, "-m", "streamlit", "run", "dashboard/app.py", "--server.port", str(port)]


class Dashboard:
    """One server and the runs of its home. `close` ends the server and every run."""

    def __init__(
        self,
        folder: Path,
        command: Callable[[int], list[str]] = streamlit_run,
        cwd: Path = ROOT,
        environ: Mapping[str, str] | None = None,
        answers_with: int = 200,
        host: str = "localhost",
    ) -> None:
        """`command` starts the server on a port, from the folder `cwd` and `environ` besides the usual. It is
        up when it answers with the status `answers_with` under the name `host`."""
        self._command = command
        self._cwd = cwd
        self._extra = dict(environ or {})
        self._answers_with = answers_with
        self._host = host
        self.home = Home(folder / "home")
        self.output = folder / "server.log"
        self.supervisor = Supervisor(self.home, spawn=fork_training)
        self._fresh = Supervisor(self.home)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return where it is served."""
        return f"http://{self._host}:{self.port}"

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None
        return self._process.pid

    def listening_on(self) -> set[str]:
        """The addresses on which the server waits for connections."""
        sockets = psutil.Process(self.pid).net_connections("tcp")
        return {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}

    def start(self) -> None:
        """Start the server, again on the same port after a kill, and wait until it answers."""
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command(self.port),
                cwd=self._cwd,
                env=self._environ() | self._extra,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        until(self._answers, bool)

    def kill(self) -> None:
        """End the server as `kill -9` does."""
        self._end(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the server's own end, and return its exit code."""
        assert self._process is not None
        return self._process.wait(PATIENCE_S)

    @property
    def is_up(self) -> bool:
        """Return whether the server was started and not ended since."""
        return self._process is not None and self._process.poll() is None

    def begin(self, name: str | None = None, *, is_fresh: bool = False, **values: Any) -> RunFolder:
        """Start a real run from outside the page and wait until it trains; a short one may have ended.

        The process is forked from one that has imported torch. `is_fresh` is for runs whose memory is
        measured: there the heap of a forked process is in the way.
        """
        supervisor = self._fresh if is_fresh else self.supervisor
        folder = supervisor.start(name, resolve(LIGHT | values))
        return self.wait_for(folder, RunState.RUNNING, RunState.FINISHED)

    def shell(self, *words: str) -> None:
        """Give a command in a shell that ends at once."""
        command = [sys.executable, "-m", "harness", *words]
        subprocess.run(command, cwd=ROOT, env=self._environ(), check=True, capture_output=True)

    def wait_for(self, folder: RunFolder, *states: RunState, limit_s: float = PATIENCE_S) -> RunFolder:
        """Wait until the run is in one of these states."""
        until(lambda: self.supervisor.status(folder), lambda status: status.state in states, limit_s)
        return folder

    def empty(self) -> None:
        """End every run, each by its own identity, and move all of them away; the server stays."""
        for folder in self.home.runs():
            end(folder)
        self.supervisor.reap()
        self._fresh.reap()
        if self.home.runs_path.exists():
            # Not removed: the server may have a log of a run open, whose files come and go.
            self.home.runs_path.rename(Path(tempfile.mkdtemp(dir=self.output.parent)) / "runs")

    def close(self) -> None:
        """End the server and every run."""
        self._end(signal.SIGTERM)
        self.empty()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _environ(self) -> dict[str, str]:
        return os.environ | {"STEPSCOPE_HOME": str(self.home.path), "OMP_NUM_THREADS": "1"}

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.output.read_text(encoding="utf-8")
        try:
            with urlopen(f"{self.url}/_stcore/health", timeout=5) as answer:
                return bool(answer.status == self._answers_with)
        except HTTPError as refusal:
            with refusal:
                return refusal.code == self._answers_with
        except (URLError, ConnectionError, TimeoutError):
            return False

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def end(folder: RunFolder) -> None:
    """Kill a run that goes on; its log stays."""
    if signal_run(folder, signal.SIGKILL):
        until(lambda: find_process(folder), lambda process: process is None)

"""Live runs whose events a test writes, alerts, and web servers that receive them."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Self

import psutil

from harness.alerts.alert import AlertKind, RunAlert
from harness.analysis.state import HEARTBEAT_LIMIT_S
from harness.closing import Closing
from harness.records.run import EventKind, EventRow, RunState, Severity
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.inserts import StateChange
from tests.store_factories import a_run, steps
from tests.supervision import until

_HOLD = """
import select, sys
from pathlib import Path
from harness.store.liveness import Liveness
with Liveness.hold(Path(sys.argv[1])) as liveness:
    print("held", flush=True)
    while not select.select([sys.stdin], [], [], 1.0)[0]:
        liveness.beat()
"""


def an_alert(kind: AlertKind = AlertKind.OOM, number: int = 1, run: str = "cnn-1") -> RunAlert:
    return RunAlert(f"{run}:{kind}:{number}", kind, run, run, f"{kind.heading}, {run}: alert {number}.")


class LiveRun(Closing):
    """A run with 20 steps and a process that holds its lock until it is killed."""

    def __init__(self, home: Home, name: str = "cnn-1") -> None:
        self.folder: RunFolder = home.create(name, resolve({"model": "mlp"}), time.time_ns())
        run = a_run(self.folder.run_id, name)._replace(
            state=RunState.RUNNING, settings=resolve({"model": "mlp"}).model_dump_json()
        )
        self._log = LogAppender(self.folder.log, run)
        self._log.append(steps(1, 20))
        command = [sys.executable, "-c", _HOLD, str(self.folder.alive)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "held\n"

    def put(self, kind: EventKind, message: str = "It happened.", severity: str = Severity.WARNING) -> None:
        """Write an event."""
        self._log.append(rows=[EventRow(1, 20, kind, severity, kind.value, message, "{}", None)])

    def finish(self, state: RunState = RunState.FINISHED, message: str = "Took all 20 steps.") -> None:
        """Write the outcome, close the log, and end the process, in the order of a real run."""
        self._log.append(states=[StateChange(state, message, time.time_ns(), None)], durable=True)
        self._log.close()
        self.kill()

    def freeze(self) -> None:
        """Stop the process for good, as a debugger does, and let its last heartbeat be long ago."""
        self._process.send_signal(signal.SIGSTOP)
        until(lambda: psutil.Process(self._process.pid).status(), lambda now: now == psutil.STATUS_STOPPED)
        long_ago_s = time.time() - HEARTBEAT_LIMIT_S - 5
        os.utime(self.folder.alive, (long_ago_s, long_ago_s))

    def kill(self) -> None:
        """End the process as `kill -9` does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()

    def close(self) -> None:
        """End the process and close the log."""
        self.kill()
        self._log.close()


class Post(NamedTuple):
    """A request that a server received."""

    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """A web server on loopback. It answers with the status `answer`, or never while `hangs`."""

    def __init__(self) -> None:
        self.posts: list[Post] = []
        self.answer = 200
        self.hangs = False
        # Pause after each character of an endless header; None: complete answers.
        self.drips_s: float | None = None
        self._released = threading.Event()
        receiver = self

        class _Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.hangs:
                    receiver._released.wait(30)
                    return
                if receiver.drips_s is not None:
                    self._drip(receiver.drips_s)
                    return
                receiver.posts.append(Post(self.path, dict(self.headers), body))
                self.send_response(receiver.answer)
                self.end_headers()

            def _drip(self, pause_s: float) -> None:
                self.wfile.write(b"HTTP/1.0 200 OK\r\nX-Drip: ")
                with suppress(OSError):
                    while not receiver._released.wait(pause_s):
                        self.wfile.write(b"x")

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """Return the address of a webhook on it, with a secret."""
        return f"http://127.0.0.1:{self._server.server_port}/services/secret"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def a_live_run(home: Home, name: str = "cnn-1") -> Iterator[LiveRun]:
    """A live run within the block."""
    with LiveRun(home, name) as run:
        yield run

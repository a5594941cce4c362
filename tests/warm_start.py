"""Training processes and workers forked from one that has imported torch, which takes most of a start.

The runs that the shell and the pages start are processes of their own from the beginning.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import ensure_running
from pathlib import Path

from harness.cli import main
from harness.store.folder import RunFolder
from harness.supervisor.launch import Process, spawn

_PRELOADED = ["tests.preload"]


class ForkedProcess:
    """A process forked from the prepared one, with the part of `subprocess.Popen` that tests need."""

    def __init__(self, process: ForkServerProcess) -> None:
        """Starts `process`."""
        self._process = process
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        # The exit code can be read once. A second thread at the same moment would read an end, and take 255.
        self._reading = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with self._reading:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; raises TimeoutExpired."""
        multiprocessing.connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmProcess(ForkedProcess):
    """One training process, the leader of its group."""

    def __init__(self, folder: RunFolder, environ: Mapping[str, str] = os.environ) -> None:
        environ = {**environ, "OMP_NUM_THREADS": "1"}
        super().__init__(prepare_forks().Process(target=_train, args=(folder.path, folder.output, environ)))


def fork_training(command: list[str], environ: Mapping[str, str], output: Path) -> Process:
    """As `spawn`, for a supervisor: a training process is forked, anything else is started as it is."""
    if command[-2] != "_run":
        return spawn(command, environ, output)
    return WarmProcess(RunFolder(Path(command[-1])), environ)


def run_script(script: str, *words: str) -> str:
    """Standard output of a script that runs in a forked process, with `words` as its arguments."""
    context = prepare_forks()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_execute, args=(sender, script, words))
    process.start()
    sender.close()
    with receiver:
        try:
            output = receiver.recv() if receiver.poll(120) else None
        except EOFError:
            output = None
    if output is None:
        process.kill()
    process.join()
    process.close()
    assert isinstance(output, str), "the script failed; its traceback is above"
    return output


def prepare_forks() -> ForkServerContext:
    """Start the process to fork from, unless it runs already. Workers of loaders are forked from it too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    ensure_running()
    return context


def _execute(sender: Connection, script: str, words: tuple[str, ...]) -> None:
    sys.argv[1:] = words
    with redirect_stdout(StringIO()) as output:
        exec(script, {"__name__": "__main__"})
    sender.send(output.getvalue())


def _train(folder: Path, output: Path, environ: Mapping[str, str]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environ)
    for descriptor, path, flags in (
        (0, Path(os.devnull), os.O_RDONLY),
        (1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)
    try:
        code = main(["_run", str(folder)])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

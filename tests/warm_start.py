"""Processes of Python forked from one that has imported torch, which takes most of their time otherwise:
training processes, shells and scripts.

What a process does at its start, how signals end it and what it imports is tested with fresh ones, and so is
what needs a heap of its own. The runs that a server under test starts are fresh as well.
"""

import atexit
import multiprocessing
import multiprocessing.connection
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.forkserver import _forkserver
from pathlib import Path
from types import SimpleNamespace
from typing import IO, NoReturn, Self

from harness.files.regular import private_opener
from harness.store.folder import RunFolder
from harness.supervisor import launch
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
        super().__init__(_fork(_train, folder.path, folder.output, environ))


def fork_training(command: list[str], environ: Mapping[str, str], output: Path) -> Process:
    """Like `spawn`, for a supervisor: a training process is forked, anything else is started as it is."""
    if command[-2] != "_run":
        return spawn(command, environ, output)
    return WarmProcess(RunFolder(Path(command[-1])), environ)


class PythonProcess(ForkedProcess):
    """A process of Python with `words` after its name, as `subprocess.Popen` with pipes starts it.

    Attributes:
        stdout: what it prints.
        stderr: its messages.
    """

    def __init__(self, *words: str, environ: Mapping[str, str] = os.environ) -> None:
        context = prepare_forks()
        (out, its_out), (err, its_err) = context.Pipe(duplex=False), context.Pipe(duplex=False)
        super().__init__(_fork(_begin, words, dict(environ), Path.cwd(), its_out, its_err))
        its_out.close()
        its_err.close()
        self.stdout, self.stderr = _stream(out), _stream(err)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end; return the rest of what it prints and its messages. Raises TimeoutExpired."""
        with ThreadPoolExecutor() as pool:
            printed, messages = (pool.submit(stream.read) for stream in (self.stdout, self.stderr))
            try:
                self.wait(timeout)
            finally:
                self.kill()  # Or the streams never end.
            return printed.result(), messages.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.stdout.close()
        self.stderr.close()
        self.wait()


def run_python(*words: str, environ: Mapping[str, str] = os.environ) -> "subprocess.CompletedProcess[str]":
    """Like `subprocess.run` with its output and its messages as text."""
    with PythonProcess(*words, environ=environ) as process:
        printed, messages = process.communicate(120)
        return subprocess.CompletedProcess(words, process.wait(), printed, messages)


def run_harness(*words: str) -> "subprocess.CompletedProcess[str]":
    """`python -m harness` with `words`."""
    return run_python("-m", "harness", *words)


def run_script(script: str, *words: str) -> str:
    """The output of a script, given as text, with `words` as its arguments."""
    done = run_python("-c", script, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def prepare_forks() -> ForkServerContext:
    """Start the process to fork from, unless it runs already. Workers of loaders are forked from it too, and
    those of the tests share the one of their parent."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    _forkserver.ensure_running()
    return context


def _share_forks() -> None:
    # Only the process that started it can ask whether it lives.
    if _forkserver._forkserver_pid is not None:  # type: ignore[attr-defined]
        _forkserver.ensure_running = lambda: None  # type: ignore[method-assign]


os.register_at_fork(after_in_child=_share_forks)


def _fork(target: Callable[..., None], *arguments: object) -> ForkServerProcess:
    return prepare_forks().Process(target=_begin_alike, args=(os.nice(0), target, arguments))


def _begin_alike(niceness: int, target: Callable[..., None], arguments: tuple[object, ...]) -> None:
    os.nice(niceness - os.nice(0))
    target(*arguments)


def _train(folder: Path, output: Path, environ: Mapping[str, str]) -> None:
    with open(output, "ab", opener=private_opener) as stream:
        _lead_group(("-m", "harness", "_run", str(folder)), environ, stream)


def _stream(end: Connection) -> IO[str]:
    with end:
        return open(os.dup(end.fileno()), encoding="utf-8")


def _begin(
    words: tuple[str, ...], environ: Mapping[str, str], folder: Path, out: Connection, err: Connection
) -> None:
    os.chdir(folder)
    with out, err:  # Closed before it starts others: as long as they have them, the streams do not end.
        _print_to(out.fileno(), err.fileno())
    _become_python(words, environ)


class _Child:
    """A child of the forked process; the part of `subprocess.Popen` that a supervisor needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._reaping = threading.Lock()

    def poll(self) -> int | None:
        with self._reaping:
            if self._code is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
            return self._code

    def wait(self) -> int:
        # It stays to be reaped: another thread may look at the same time.
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        code = self.poll()
        assert code is not None
        return code


def _fork_python(
    command: list[str], *, env: Mapping[str, str], stdout: IO[bytes], **_options: object
) -> _Child:
    """In place of `subprocess.Popen` for `python -P …`, as `launch.spawn` calls it."""
    assert command[:2] == [sys.executable, "-P"], command
    pid = os.fork()
    if pid == 0:
        _lead_group(tuple(command[2:]), env, stdout)
    return _Child(pid)


def _lead_group(words: tuple[str, ...], environ: Mapping[str, str], output: IO[bytes]) -> NoReturn:
    os.setsid()
    _print_to(output.fileno(), output.fileno())
    _become_python(words, environ)


def _print_to(out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)


def _become_python(words: tuple[str, ...], environ: Mapping[str, str]) -> NoReturn:
    """Do what Python does with `words`, and end."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    # Those of the process it was forked from know whether their files were pipes.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  (open to the process's end)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environ)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    atexit._clear()
    multiprocessing.set_start_method(None, force=True)  # Not the one by which it was started itself.
    launch.subprocess = SimpleNamespace(  # type: ignore[attr-defined,assignment]
        Popen=_fork_python, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT
    )
    code = _code_of(words)
    threading._shutdown()  # type: ignore[attr-defined]  # As Python does before its end.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _code_of(words: tuple[str, ...]) -> int:
    try:
        _run(words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001  (as Python does)
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _run(words: tuple[str, ...]) -> None:
    sys.argv = list(words)
    if words[0] == "-m":
        del sys.argv[0]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        del sys.argv[1]
        exec(words[1], {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(words[0]).parent))
        runpy.run_path(words[0], run_name="__main__")

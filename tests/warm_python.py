"""`python -m …` and `python script.py` in processes forked from one that has imported torch: scripts that
train import for most of their time otherwise. Training processes that they start are forked as well.

What a process does at its start, how signals end it and what it imports is tested with fresh ones.
"""

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Self

from harness.supervisor import launch
from tests.warm_start import ForkedProcess, prepare_forks


class PythonProcess(ForkedProcess):
    """A process of Python with `words` after its name, as `subprocess.Popen` with pipes starts it.

    Attributes:
        stdout: what it prints.
        stderr: its messages.
    """

    def __init__(self, *words: str, environ: Mapping[str, str] = os.environ) -> None:
        context = prepare_forks()
        (out, its_out), (err, its_err) = context.Pipe(duplex=False), context.Pipe(duplex=False)
        arguments = (words, dict(environ), Path.cwd(), its_out, its_err)
        super().__init__(context.Process(target=_begin, args=arguments))
        its_out.close()
        its_err.close()
        self.stdout, self.stderr = _stream(out), _stream(err)

    def communicate(self, timeout: float) -> tuple[str, str]:
        """Wait for its end; return the rest of what it prints and its messages."""
        messages: list[str] = []
        reader = threading.Thread(target=lambda: messages.append(self.stderr.read()))
        reader.start()
        printed = self.stdout.read()
        reader.join()
        self.wait(timeout)
        return printed, messages[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.stdout.close()
        self.stderr.close()
        self.wait()


def run_python(*words: str, environ: Mapping[str, str] = os.environ) -> "subprocess.CompletedProcess[str]":
    """As `subprocess.run` with what it prints and its messages as text."""
    with PythonProcess(*words, environ=environ) as process:
        printed, messages = process.communicate(120)
        return subprocess.CompletedProcess(words, process.wait(), printed, messages)


def run_harness(*words: str) -> "subprocess.CompletedProcess[str]":
    """`python -m harness` with `words`."""
    return run_python("-m", "harness", *words)


def _stream(end: Connection) -> IO[str]:
    with end:
        return open(os.dup(end.fileno()), encoding="utf-8")


def _begin(
    words: tuple[str, ...], environ: Mapping[str, str], folder: Path, out: Connection, err: Connection
) -> None:
    os.chdir(folder)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    out.close()
    err.close()
    _be_python(words, environ)


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
        os.setsid()
        os.dup2(stdout.fileno(), 1)
        os.dup2(stdout.fileno(), 2)
        _be_python(tuple(command[2:]), env)
    return _Child(pid)


def _be_python(words: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Do what Python does with these words, and end the process."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
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
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            sys.path.insert(0, str(Path(words[0]).parent))
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001  (as Python does)
        sys.excepthook(*sys.exc_info())
        return 1
    return 0

"""Client of the child process that computes predictions: one line per question, one line per result."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import harness
from harness.errors import StepscopeError

COMMAND = (sys.executable, "-P", "-m", "harness.predict")
_END_S = 5.0


class ProcessError(StepscopeError):
    """The child process returned no result; the message gives the reason."""


class AnsweringProcess:
    """Starts its command at the first query, and again after it has exited. Not thread-safe, except `kill`.
    The child exits when idle, and with its parent, because its input ends."""

    def __init__(self, command: Sequence[str] = COMMAND, variables: Mapping[str, str] | None = None) -> None:
        """`variables` are added to this process's environment."""
        self._command = list(command)
        self._variables = dict(variables or {})
        self._process: subprocess.Popen[bytes] | None = None

    def query(self, line: str, timeout_s: float) -> str:
        """Return the child's answer to `line`. Raises ProcessError without one within `timeout_s`: the child
        is then killed, and the next query starts another."""
        for attempt in (1, 2):
            process = self._running()
            try:
                return self._exchange(process, line, timeout_s)
            except (BrokenPipeError, EOFError):
                code = self._end(process)
                if code == 0 and attempt == 1:
                    continue  # The idle child had just exited.
                raise ProcessError(
                    f"The prediction process {_exit_clause(code)}; change a setting or try again."
                ) from None
        raise AssertionError("unreachable")

    def kill(self) -> None:
        """End the child now. Idempotent."""
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End the child and wait for its exit, for a bounded time."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            self._end(process)

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is not None and process.poll() is None:
            return process
        if process is not None:
            self._end(process)
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=child_environment({**os.environ, **self._variables}),
                bufsize=0,
            )
        except OSError as error:
            raise ProcessError(
                f"The prediction process could not be started: {error.strerror or error}; close other "
                "programs or check the limit on processes (ulimit -u)."
            ) from error
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], line: str, timeout_s: float) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line.encode() + b"\n")
        deadline_s = time.monotonic() + timeout_s
        answer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    process.kill()
                    self._end(process)
                    raise ProcessError(
                        f"The prediction was canceled after {timeout_s:.0f} s; a smaller model is predicted "
                        "faster."
                    )
                piece = os.read(process.stdout.fileno(), 1 << 20)
                if not piece:
                    raise EOFError
                answer += piece
        return answer.decode()

    def _end(self, process: subprocess.Popen[bytes]) -> int | None:
        """Close the pipes and return the exit code; None if the child does not exit."""
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return None


def child_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the parent's environment without GPUs (a prediction does not use them), with threads that do not
    spin while waiting (kernels run briefly next to other work), and with this package on the path even if it
    is not installed."""
    child = {name: value for name, value in environ.items() if not name.startswith("STREAMLIT_")}
    child |= {"CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONUNBUFFERED": "1"}
    root = Path(harness.__file__).parents[1]
    if root.name not in ("site-packages", "dist-packages"):
        paths = [str(root), *filter(None, child.get("PYTHONPATH", "").split(os.pathsep))]
        child["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return child


def _exit_clause(code: int | None) -> str:
    if code is None:
        return "stopped responding"
    if code >= 0:
        return f"exited with code {code} before it had a result"
    reason = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{reason}"

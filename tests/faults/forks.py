"""A process that forks others by request, as the scenarios see it."""

import os
import select
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.closing import Closing
from tests.supervision import until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


class Forks(Closing):
    """Starts `module` and speaks with it: a request per line, answers as "PID WORD…". A context manager; what
    still runs at its end is killed."""

    def __init__(self, module: str, environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ},
        )
        self._rest = b""
        self._started: list[int] = []
        self._ended: dict[int, int] = {}
        self._messages: defaultdict[int, list[str]] = defaultdict(list)

    def start(self, line: str) -> int:
        """Have one process forked; its number."""
        assert self._process.stdin is not None
        count = len(self._started)
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()
        until(self._poll, lambda _: len(self._started) > count, PATIENCE_S)
        return self._started[count]

    def ended(self, pid: int) -> int | None:
        """Return how this process ended, as `waitpid` has it; None while it runs."""
        self._poll()
        return self._ended.get(pid)

    def said(self, pid: int) -> Sequence[str]:
        """Return what this process said so far."""
        self._poll()
        return self._messages[pid]

    def close(self) -> None:
        """Kill what runs and end the forking process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._process.poll() is None:
            self._poll()
            for pid in set(self._started) - set(self._ended):
                os.kill(pid, signal.SIGKILL)
        self._process.stdin.close()
        self._process.stdout.read()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()

    def _poll(self) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while select.select([descriptor], [], [], 0)[0]:
            data = os.read(descriptor, 65_536)
            if not data:
                raise EOFError("the process that forks others has ended")
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._note(*line.decode().split(" ", 1))

    def _note(self, number: str, text: str) -> None:
        pid, (word, _, rest) = int(number), text.partition(" ")
        if word == "started":
            self._started.append(pid)
        elif word == "ended":
            self._ended[pid] = int(rest)
        else:
            self._messages[pid].append(text)

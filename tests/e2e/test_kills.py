"""Two hundred kill -9 at random moments lose no acknowledged row and leave every log sound."""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import LogMissingError
from harness.store.reader import LogReader

_KILLS = 200
_LONGEST_S = 0.08


class Target:
    """The template process and what its child said."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.kill_target"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=root,
            env=os.environ | {"PYTHONPATH": str(root)},
        )
        self._rest = b""

    def start(self, folder: Path, seed: int) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder} {seed}\n".encode())
        self._process.stdin.flush()
        acknowledged = 0
        while True:  # The child may speak before its parent.
            for line in self._lines(10.0):
                word, _, number = line.partition(" ")
                if word == "pid":
                    self._first_ack = acknowledged
                    return int(number)
                acknowledged = int(number)

    def kill(self, child: int, after_s: float) -> int:
        """Kill the child after a while; the last step it acknowledged."""
        time.sleep(after_s)
        os.kill(child, signal.SIGKILL)
        acknowledged = self._first_ack
        while True:
            for line in self._lines(10.0):
                if line == "gone":
                    return acknowledged
                if line.startswith("ack "):
                    acknowledged = int(line.split()[1])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)

    def _lines(self, timeout_s: float) -> Iterator[str]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        assert ready, "the process to kill went silent"
        data = os.read(self._process.stdout.fileno(), 65_536)
        assert data, "the process to kill ended"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield line.decode()


@pytest.fixture
def target() -> Iterator[Target]:
    found = Target()
    yield found
    found.close()


def _check(log: Path, acknowledged: int) -> int:
    """Hold the log against what was acknowledged; its last step."""
    with LogReader(log) as reader:
        reader.check()
        last = reader.extent().last or 0
        assert last >= acknowledged
        assert reader.run().run_id
        assert [row.step for row in reader.steps(0, last, limit=10**6)] == list(range(1, last + 1))
        series = reader.series(1, max(last, 1), 7)
        assert sum(series.column("rows")) == last
        told = [int(event.message) for _, event in reader.events() if event.kind == "warning"]
        assert told == sorted(told)
        assert not acknowledged or acknowledged in told
    return last


@pytest.mark.slow
def test_kills_at_random_moments_lose_no_acknowledged_row(target: Target, tmp_path: Path) -> None:
    chance = random.Random(1)
    acknowledged_once, last_steps = 0, []
    for kill in range(_KILLS):
        folder = tmp_path / str(kill)
        folder.mkdir()
        child = target.start(folder, kill)
        acknowledged = target.kill(child, chance.random() ** 2 * _LONGEST_S)
        acknowledged_once += acknowledged > 0
        try:
            last_steps.append(_check(folder / "log.sqlite3", acknowledged))
        except LogMissingError:
            assert acknowledged == 0
    assert acknowledged_once > _KILLS / 3
    assert max(last_steps) > 1_000

"""Kills -9 at random moments lose no acknowledged row and leave every log sound."""

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
from tests.supervision import PATIENCE_S

_MOST_ACKS, _LONGEST_S = 12, 0.02


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

    def run(self, folder: Path, seed: int, after_acks: int, after_s: float) -> int:
        """Start a child, wait for so many acknowledgements and a while, and kill it; the last step it
        acknowledged."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder} {seed}\n".encode())
        self._process.stdin.flush()
        child, acknowledgements = 0, [0]
        closed = killed = False
        while True:
            if child and not killed and (closed or len(acknowledgements) > after_acks):
                time.sleep(after_s)
                os.kill(child, signal.SIGKILL)
                killed = True
            for line in self._lines():
                word, _, number = line.partition(" ")
                if word == "pid":
                    child = int(number)
                elif word == "ack":
                    acknowledgements.append(int(number))
                elif word == "closed":
                    closed = True
                else:
                    return acknowledgements[-1]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)

    def _lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], PATIENCE_S)
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
@pytest.mark.parametrize("kills", [40, pytest.param(200, marks=pytest.mark.long)])
def test_kills_at_random_moments_lose_no_acknowledged_row(target: Target, tmp_path: Path, kills: int) -> None:
    chance = random.Random(1)
    acknowledged_once, last_steps = 0, []
    for kill in range(kills):
        folder = tmp_path / str(kill)
        folder.mkdir()
        after_acks, after_s = chance.randrange(_MOST_ACKS), chance.random() * _LONGEST_S
        acknowledged = target.run(folder, kill, after_acks, after_s)
        acknowledged_once += acknowledged > 0
        try:
            last_steps.append(_check(folder / "log.sqlite3", acknowledged))
        except LogMissingError:
            assert acknowledged == 0
    assert acknowledged_once > kills / 3
    assert max(last_steps) > 1_000

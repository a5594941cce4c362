"""kill -9 at random moments."""

import os
import random
import select
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.errors import LogMissingError
from harness.records.run import RunState
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from tests.faults.forks import ROOT
from tests.faults.scenario import Bench, Measurement, Scenario, log_faults, training_faults

_MOST_ACKS, _LONGEST_S = 12, 0.02
_PATIENCE_S = 30.0
_STEP_MS = 5.0
_PACED: dict[str, Any] = {"max_steps": 100_000, "slow_loader_ms": _STEP_MS}
_AT_ONCE = 4
_LONGEST_TRAINING_S = 1.5
_MOST_LOST_MS = 1_000.0


class Target:
    """The process that forks writers, and what the present one said."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.kill_target"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self._rest = b""

    def run(self, folder: Path, seed: int, after_acks: int, after_s: float) -> int:
        """Start a writer, wait for so many acknowledgments and a while, and kill it; the last step it
        acknowledged."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder} {seed}\n".encode())
        self._process.stdin.flush()
        child, acknowledged = 0, [0]
        closed = killed = False
        while True:
            if child and not killed and (closed or len(acknowledged) > after_acks):
                time.sleep(after_s)
                os.kill(child, signal.SIGKILL)
                killed = True
            for line in self._lines():
                word, _, number = line.partition(" ")
                if word == "pid":
                    child = int(number)
                elif word == "ack":
                    acknowledged.append(int(number))
                elif word == "closed":
                    closed = True
                else:
                    return acknowledged[-1]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(10)

    def _lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _PATIENCE_S)
        assert ready, "the process to kill went silent"
        data = os.read(self._process.stdout.fileno(), 65_536)
        assert data, "the process to kill ended"
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield line.decode()


def _faults_of_log(log: Path, acknowledged: int) -> tuple[list[str], int]:
    """Return what is wrong with the log of a killed writer, and its last step."""
    try:
        reader = LogReader(log)
    except LogMissingError:
        return (["there is no log, and rows were acknowledged"] if acknowledged else []), 0
    with reader:
        reader.check()
        last = reader.extent().last or 0
        wrong = []
        if last < acknowledged:
            wrong.append(f"{acknowledged} steps were acknowledged, {last} are in the log")
        if [row.step for row in reader.steps(0, last, limit=10**6)] != list(range(1, last + 1)):
            wrong.append(f"steps are missing before step {last}")
        if sum(reader.series(1, max(last, 1), 7).column("rows")) != last:
            wrong.append("the rollups do not add up to the steps")
        messages = [int(event.message) for _, event in reader.events() if event.kind == "warning"]
        if messages != sorted(messages) or (acknowledged and acknowledged not in messages):
            wrong.append("an acknowledged event is missing")
    return wrong, last


def _kill_writers(bench: Bench) -> Measurement:
    kills = bench.count(500, 15)
    chance: random.Random = bench.chance("writers")
    folder, target = bench.new_folder("writers"), Target()
    broken, acknowledged_once, rows = [], 0, 0
    try:
        for kill in range(kills):
            place = folder / str(kill)
            place.mkdir()
            after_acks, after_s = chance.randrange(_MOST_ACKS), chance.random() * _LONGEST_S
            acknowledged = target.run(place, kill, after_acks, after_s)
            wrong, last = _faults_of_log(place / "log.sqlite3", acknowledged)
            broken += [f"kill {kill}: {text}" for text in wrong]
            acknowledged_once += acknowledged > 0
            rows += last
    finally:
        target.close()
    if acknowledged_once < kills / 3:
        broken.append(f"only {acknowledged_once} writers lived long enough to acknowledge anything")
    text = f"{kills} kills over {rows:,} rows: every acknowledged row is there, every log is sound"
    return Measurement(text, tuple(broken))


def _kill_training(bench: Bench) -> Measurement:
    kills, chance = bench.count(60, 4), bench.chance("training")
    losses = bench.losses
    home = bench.new_home("killed")
    supervisor = Supervisor(home)
    lost, broken, step_ms = [], [], []
    for first in range(0, kills, _AT_ONCE):
        runs = [bench.trainer.train(home, _PACED) for _ in range(min(_AT_ONCE, kills - first))]
        for run in runs:
            run.wait_for_step(1)
            time.sleep(chance.random() * _LONGEST_TRAINING_S)
            run.send(signal.SIGKILL)
            run.wait()
            rows = run.rows()
            lost.append(run.steps - len(rows))
            step_ms += [row.step_ns / 1e6 for row in rows]
            broken += training_faults(run, losses) + log_faults(run, losses)
            status = supervisor.status(run.folder)
            if status.state not in (RunState.LOST, RunState.KILLED):
                broken.append(f"a killed run is called {status.state}: {status.message}")
    typical_ms = statistics.median(step_ms)
    if max(lost) * typical_ms > _MOST_LOST_MS:
        broken.append(f"{max(lost)} steps of {typical_ms:.1f} ms were lost")
    text = (
        f"{kills} kills of runs with steps of {typical_ms:.1f} ms: "
        f"{statistics.median(lost):.0f} steps lost in the median, {max(lost)} at most; every log is "
        "sound and says what was trained"
    )
    return Measurement(text, tuple(broken))


SCENARIOS = (
    Scenario(
        "kill-writer",
        "kill -9 of the process that writes a log, at random moments",
        "No acknowledged row is lost, and the log is sound.",
        _kill_writers,
    ),
    Scenario(
        "kill-training",
        "kill -9 of a training process, at random moments",
        "All but the last second is in the log, and the run is called killed or lost.",
        _kill_training,
        is_in_tests=False,
    ),
)

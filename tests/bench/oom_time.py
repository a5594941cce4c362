"""Measure how well the time until memory runs out is stated: leaking runs under a cap, until they die of it.

`python -m tests.bench oom-time [--quick]`. Real runs of the mlp on the CPU, each in a process of its own,
with an injected leak of a random kind, size and cap; and simulated ones on a GPU, where the caching
allocator's policy is replayed. The seed is new each time and printed with the figures.
"""

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.records.run import EventKind
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder, RunRequest, write_request
from harness.store.reader import LogReader
from tests.bench.figures import Figure
from tests.bench.oom_time_series import Statement, against_the_truth, simulated_run, statements

_RUNS, _QUICK_RUNS = 40, 4
_SIMULATED, _QUICK_SIMULATED = 120, 12
_LONGEST_S = 120.0
WITHIN, LEAST_SHARE = 1.5, 0.9
LEAST_LEFT = 50
"""Later than so many steps before the end statements are left out: readings are too far apart."""
_FAULTS = ("leak:graph", "leak:hidden", "leak:list", "leak:cache", "leak:host", "fragmentation")
_GIB = 2**30


class CappedRun(NamedTuple):
    """A run on the CPU: its fault as `inject` says it, its cap, its seed."""

    inject: str
    cap_gib: float
    seed: int


def figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """The share of statements within a factor of 1.5, of the first in each run and of all."""
    seed, count = secrets.randbelow(2**31), _QUICK_RUNS if is_quick else _RUNS
    simulated_count = _QUICK_SIMULATED if is_quick else _SIMULATED
    simulated = [statements(simulated_run(seed, number)) for number in range(simulated_count)]
    yield from _shares(f"GPU, simulated, seed {seed}", simulated)
    real = []
    for number in range(count):
        place = folder / str(number)
        place.mkdir()
        real.append(died(capped_run(seed, number), place))
    yield from _shares(f"CPU, real runs of the mlp, seed {seed}", real)


def capped_run(seed: int, number: int) -> CappedRun:
    """The run of that number: a fault of 96 to 480 KiB per step under a cap of 180 to 400 MiB."""
    chance = np.random.default_rng([seed, number])
    fault = str(chance.choice(_FAULTS))
    kib = int(np.exp(chance.uniform(np.log(96), np.log(480))))
    cap_bytes = np.exp(chance.uniform(np.log(180), np.log(400))) * 2**20
    return CappedRun(f"{fault}:{kib}KiB", round(float(cap_bytes) / _GIB, 4), number)


def died(run: CappedRun, folder: Path) -> list[Statement]:
    """Train until memory runs out; what was stated about it."""
    settings = resolve(
        {
            "model": "mlp",
            "device": "cpu",
            "batch_size": 512,
            "memory_cap_gib": run.cap_gib,
            "inject": run.inject,
            "seed": run.seed,
            "oom_policy": "stop",
            "max_seconds": _LONGEST_S,
        }
    )
    write_request(folder, RunRequest(folder.name, "oom-time", time.time_ns(), settings.model_dump_json()))
    subprocess.run(
        [sys.executable, "-m", "harness", "_run", str(folder)],
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=3 * _LONGEST_S,
        env={"OMP_NUM_THREADS": "1", "PATH": ""},
    )
    with LogReader(RunFolder(folder).log) as log:
        ends = [event.step for _, event in log.events() if event.kind == EventKind.OOM]
        return against_the_truth(log.memory.leaks(), ends[0]) if ends else []


def _shares(name: str, runs: Sequence[Sequence[Statement]]) -> Iterator[Figure]:
    runs = [[one for one in run if one.left >= LEAST_LEFT] for run in runs]
    first = [run[0] for run in runs if run]
    every = [one for run in runs for one in run]
    yield Figure(f"{name}: runs with a statement of {len(runs)}", [len(first)], "")
    for what, group, least in (("first statements", first, LEAST_SHARE), ("all statements", every, None)):
        if group:
            share = sum(one.factor <= WITHIN for one in group) / len(group)
            yield Figure(f"{name}: {what} within × {WITHIN}", [share], "", least, is_least=True)
            yield Figure(f"{name}: {what}, factor off", [one.factor for one in group], "×")
    if first:
        lived = [100 * one.step / (one.step + one.left) for one in first]
        yield Figure(f"{name}: share of the run's life before the first statement", lived, "%")

"""Measure how often an observed change is right: real runs whose changes have a known effect, most of them
none.

The whole measurement also writes docs/observed-change.md.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from harness.store.reader import LogReader
from harness.supervisor.changes import observe_version
from tests.bench.effect_outcomes import Outcome
from tests.bench.effect_page import write
from tests.bench.effect_runs import SHARES, Plan, has_ended, truth
from tests.bench.figures import Figure

MINUTES, QUICK_MINUTES = 35.0, 2.0
SEED = 20261122
MOST_CALLED_PCT = 5.0
LEAST_DETECTED_PCT = {0.05: 70.0, 0.10: 90.0}
LEAST_COVERED_PCT = 93.0
# What a run takes beside its training: the start of Python and torch, and the calibration.
_START_S = 300.0
_MODELS: Sequence[tuple[dict[str, Any], int]] = (
    ({"model": "mlp"}, 1),
    ({"model": "cnn"}, 1),
    ({"model": "mlp"}, 2),
    ({"model": "cnn"}, 2),
)


def figures(
    folder: Path,
    is_quick: bool,
    minutes: float | None = None,
    seed: int | None = None,
    runs: Path | None = None,
    at_a_time: int = 1,
) -> list[Figure]:
    """Runs alone, then runs beside another process; `minutes` of training for each of the two. In `runs` they
    are kept, and those that are there are not trained again. With `at_a_time` runs at once each has its share
    of the cores."""
    folder = runs or folder
    minutes = minutes or (QUICK_MINUTES if is_quick else MINUTES)
    seed = SEED if seed is None else seed
    models = _MODELS[:1] if is_quick else _MODELS
    figures: list[Figure] = []
    outcomes: list[Outcome] = []
    shares = _core_shares(at_a_time)
    for hogs in (0, 1):
        plans = [
            Plan(settings, threads, hogs, 60 * minutes / len(models), seed + 100 * hogs + number)
            for number, (settings, threads) in enumerate(models)
        ]

        def run_on_share(number: int, plan: Plan) -> list[Outcome]:
            cores = shares.get()
            try:
                return run(plan._replace(cores=cores), folder / f"{plan.hogs}-{number}")
            finally:
                shares.put(cores)

        with ThreadPoolExecutor(at_a_time) as pool:
            results = list(pool.map(run_on_share, range(len(plans)), plans))
        some = [outcome for result in results for outcome in result]
        outcomes += some
        figures += _figures("beside another process" if hogs else "alone", some)
    if not is_quick:
        write(figures, outcomes, _command(minutes, seed, at_a_time))
    return figures


def _command(minutes: float, seed: int, at_a_time: int) -> str:
    at_once = f" --at-a-time {at_a_time}" if at_a_time > 1 else ""
    return f"python -m tests.bench effect --minutes {minutes:g} --seed {seed}{at_once}"


def _core_shares(number: int) -> "SimpleQueue[list[int]]":
    """The cores of this process in so many parts; one run alone takes what it gets."""
    cores = sorted(os.sched_getaffinity(0))
    size = len(cores) // number
    if size == 0:
        raise ValueError(f"{number} runs at a time need as many cores; there are {len(cores)}.")
    shares: SimpleQueue[list[int]] = SimpleQueue()
    for at in range(number):
        shares.put(cores[at * size : (at + 1) * size] if number > 1 else [])
    return shares


def run(plan: Plan, folder: Path) -> list[Outcome]:
    """Train as planned in a process of its own; what was observed at each change."""
    if not has_ended(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [sys.executable, "-m", "tests.bench.effect_runs", json.dumps(plan), str(folder)]
        subprocess.run(command, check=True, timeout=plan.seconds + _START_S)
    return list(outcomes_of(plan, folder))


def outcomes_of(plan: Plan, folder: Path) -> Iterator[Outcome]:
    """The changes of a run that gave both sides enough time."""
    values = truth(folder)
    with LogReader(folder / "log.sqlite3") as reader:
        history = reader.settings_history()
        for at in range(1, len(history)):
            observed = observe_version(reader, history, at, is_over=True)
            if observed.has_windows:
                versions = history[at - 1].version, history[at].version
                intended, effect = (_step(shares, *versions) for shares in (values.intended, values.measured))
                yield Outcome(plan, values.load, intended, effect, observed)


def _step(shares: Sequence[float], before: int, after: int) -> float:
    """Return the share by which a step takes longer under version `after` of the settings."""
    return (1 + shares[after - 1]) / (1 + shares[before - 1]) - 1


def _figures(name: str, outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    nothing = [outcome for outcome in outcomes if outcome.intended == 0]
    yield _percentage(f"{name}: of changes of nothing, called", nothing, "is_called", MOST_CALLED_PCT, False)
    for share in SHARES:
        some = [outcome for outcome in outcomes if outcome.is_of(share)]
        limit = LEAST_DETECTED_PCT[share]
        yield _percentage(f"{name}: of changes by {share:.0%}, found", some, "is_detected", limit, True)
    yield _percentage(
        f"{name}: intervals that hold the truth", outcomes, "is_covered", LEAST_COVERED_PCT, True
    )
    yield _percentage(f"{name}: wrong sign", outcomes, "has_wrong_sign", 0.0, False)
    if outcomes:
        yield Figure(f"{name}: stated resolution", [outcome.resolution_pct for outcome in outcomes], "%")


def _percentage(name: str, outcomes: Sequence[Outcome], kind: str, limit: float, is_least: bool) -> Figure:
    count = sum(getattr(outcome, kind) for outcome in outcomes)
    share_pct = 100 * count / len(outcomes) if outcomes else math.nan
    return Figure(f"{name} ({count} of {len(outcomes)})", [share_pct], "%", limit, is_least)

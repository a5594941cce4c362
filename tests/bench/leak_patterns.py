"""Healthy real runs whose steps differ, and the same with a leak: is any of them wrongly called, at any time?

`python -m tests.bench leak-patterns [--quick]`. The mlp, lstm and transformer train on batches whose length
is drawn anew from step to step, in processes of their own. A healthy run that is called a leak in any of its
judgments counts, even where that is taken back. The seed is new each time and printed with the figures.
"""

import multiprocessing
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from harness.data.source import Batch
from harness.device.cpu.device import CpuDevice
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.store.reader import LogReader
from harness.train.workload import Workload
from tests.bench.figures import Figure
from tests.bench.rig import Recording, cpu_workload

_RUNS, _QUICK_RUNS = 28, 7
_RUN_S, _QUICK_RUN_S = 20.0, 8.0
_STEPS = 10_000_000
LEAST_RECALL = 0.95


class Pattern(StrEnum):
    """Differences between the steps of a healthy run."""

    UNIFORM = "uniform"
    LOG_NORMAL = "log-normal"
    BURSTY = "bursty"
    SORTED = "sorted in each epoch"
    CURRICULUM = "longer until a plateau"
    EVALUATION = "evaluation every so many steps"
    METRICS = "metrics collected and dropped"


class PatternPlan(NamedTuple):
    """One run. `period`: steps of an epoch, a burst, a curriculum, or between two evaluations or drops.
    `leaked_bytes` per step, 0 without a leak."""

    pattern: Pattern
    settings: dict[str, Any]
    seed: int
    period: int
    leaked_bytes: int


class PatternRun(NamedTuple):
    """Verdicts on a run, in their order."""

    plan: PatternPlan
    steps: int
    calls: list[LeakRow]
    last: dict[LeakSeries, LeakRow]

    @property
    def is_above_limit(self) -> bool:
        """Return whether the leak is larger than what the run itself says it would have noticed."""
        row = self.last.get(LeakSeries.ALLOCATED)
        return (
            row is not None
            and row.detection_limit is not None
            and self.plan.leaked_bytes > row.detection_limit
        )


_MODELS: Sequence[dict[str, Any]] = (
    {"model": "lstm", "batch_size": 8, "sequence_length": 96},
    {"model": "transformer", "batch_size": 4, "sequence_length": 128},
    {"model": "mlp", "batch_size": 512},
)


def figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """The share of healthy runs never called a leak, and of leaks that are called by the end."""
    seed, count = secrets.randbelow(2**31), _QUICK_RUNS if is_quick else _RUNS
    runs = run_patterns(seed, range(count), folder, _QUICK_RUN_S if is_quick else _RUN_S)
    name = f"{count} real runs, seed {seed}"
    healthy = [run for run in runs if not run.plan.leaked_bytes]
    never = [1 - share for share in _called(healthy)]
    yield Figure(f"{name}: of {len(healthy)} healthy ones never called a leak", never, "", 1.0, True)
    leaking = [run for run in runs if run.plan.leaked_bytes]
    above = [run for run in leaking if run.is_above_limit]
    of_above = f"{name}: of {len(above)} leaks above the limit called"
    yield Figure(of_above, _called(above), "", LEAST_RECALL, True)
    yield Figure(f"{name}: of all {len(leaking)} leaks called", _called(leaking), "")
    first_steps = [run.calls[0].step for run in leaking if run.calls]
    yield Figure(f"{name}: readings before the call, in steps", first_steps, "")


def _called(runs: Sequence[PatternRun]) -> list[float]:
    """Return the share of the runs in which a leak was called, as a value; none without runs."""
    return [sum(bool(run.calls) for run in runs) / len(runs)] if runs else []


def pattern_plan(seed: int, number: int) -> PatternPlan:
    """The run of that number: all patterns in turn, seven without a leak and seven with one."""
    chance = np.random.default_rng([seed, number])
    patterns = list(Pattern)
    leaks = number // len(patterns) % 2 == 1
    leaked = int(np.exp(chance.uniform(np.log(4 * 2**10), np.log(2**20)))) if leaks else 0
    period = int(np.exp(chance.uniform(np.log(30), np.log(800))))
    return PatternPlan(
        patterns[number % len(patterns)],
        _MODELS[int(chance.integers(len(_MODELS)))],
        int(chance.integers(2**31)),
        period,
        leaked,
    )


def run_patterns(seed: int, numbers: Sequence[int], folder: Path, seconds: float) -> list[PatternRun]:
    """Train each plan for so long, one after the other, each in a fresh process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.bench.leak_patterns"])
    runs = []
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        for number in numbers:
            place = folder / str(number)
            place.mkdir()
            runs.append(pool.submit(train_pattern, pattern_plan(seed, number), place, seconds).result())
    return runs


def train_pattern(plan: PatternPlan, folder: Path, seconds: float) -> PatternRun:
    """Train for so long, with one of torch's threads; every LEAK that was said."""
    torch.set_num_threads(1)
    device = CpuDevice.open()
    workload = cpu_workload(device, max_seconds=seconds, seed=plan.seed % 1_000, **plan.settings)
    workload.next_batch = _varied(plan, workload)
    try:
        with Recording(workload, device, folder) as recording:
            recording.train(_STEPS)
        assert not recording.errors, recording.errors
        with LogReader(recording.log) as log:
            steps, rows = log.extent().steps, log.memory.leaks()
            last = {LeakSeries(row.series): row for row in rows}
    finally:
        workload.close()
    return PatternRun(plan, steps, [row for row in rows if row.verdict == LeakVerdict.LEAK], last)


def _varied(plan: PatternPlan, workload: Workload) -> Callable[[], Batch]:
    """Return what takes the next batch, cuts it to the length of the step, and leaks where the plan says
    so."""
    chance = np.random.default_rng(plan.seed)
    whole, leaked, metrics = workload.next_batch, list[Tensor](), list[Tensor]()
    step = 0

    def next_batch() -> Batch:
        nonlocal step
        step += 1
        inputs, targets = whole()
        share = _share(plan, step, chance)
        dim = 1 if "sequence_length" in plan.settings else 0
        length = max(1, round(inputs.shape[dim] * share))
        batch = Batch(inputs.narrow(dim, 0, length).clone(), targets.narrow(dim, 0, length).clone())
        if plan.pattern is Pattern.EVALUATION and step % plan.period == 0:
            with torch.no_grad():
                for _ in range(5):
                    workload.forward(inputs, targets)
        if plan.pattern is Pattern.METRICS:
            metrics.append(torch.zeros(int(chance.uniform(0.5, 1.0) * 16 * 2**10)))
            if step % plan.period == 0:
                metrics.clear()
        if plan.leaked_bytes:
            leaked.append(torch.zeros(plan.leaked_bytes // 4))
        return batch

    return next_batch


def _share(plan: PatternPlan, step: int, chance: np.random.Generator) -> float:
    """Return how much of the longest batch the batch of the step has."""
    match plan.pattern:
        case Pattern.UNIFORM:
            return float(chance.uniform(0.1, 1.0))
        case Pattern.LOG_NORMAL:
            return float(min(chance.lognormal(np.log(0.25), 0.6), 1.0))
        case Pattern.BURSTY:
            return 1.0 if chance.uniform() < 0.02 else float(chance.uniform(0.1, 0.2))
        case Pattern.SORTED:
            return 0.1 + 0.9 * (step % plan.period) / plan.period
        case Pattern.CURRICULUM:
            return min(1.0, 0.1 + 0.9 * step / (3 * plan.period))
        case Pattern.EVALUATION | Pattern.METRICS:
            return float(chance.uniform(0.5, 1.0))

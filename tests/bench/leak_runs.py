"""Real runs with and without an injected leak: real models, loaders, observers and logs."""

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.device.cpu.device import CpuDevice
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import EventKind
from harness.store.reader import LogReader
from tests.bench.rig import Recording, cpu_workload

MANY_STEPS = 10_000_000


class Plan(NamedTuple):
    """One run: settings, and which series leaks (None: none does) by how many bytes a step."""

    settings: dict[str, Any]
    leaks: LeakSeries | None = None
    step_bytes: int = 0


class Ran(NamedTuple):
    """Outcome of a run. `called_at` is the step of the first LEAK of any series."""

    plan: Plan
    steps: int
    last: dict[LeakSeries, LeakRow]
    called_at: int | None

    @property
    def called(self) -> set[LeakSeries]:
        """The series that are called a leak at the end."""
        return {series for series, row in self.last.items() if row.verdict == LeakVerdict.LEAK}

    @property
    def is_above_limit(self) -> bool:
        """Return whether what was injected is more than the run's own detection limit at its end."""
        if self.plan.leaks is None or self.plan.leaks not in self.last:
            return False
        limit = self.last[self.plan.leaks].detection_limit
        return limit is not None and self.plan.step_bytes > limit


_MODELS: Sequence[dict[str, Any]] = (
    {"model": "mlp", "batch_size": 512},
    {"model": "cnn", "batch_size": 32},
    {"model": "transformer", "batch_size": 4, "sequence_length": 64},
    {"model": "lstm", "batch_size": 8, "sequence_length": 32},
)
_HEALTHY: Sequence[dict[str, Any]] = (
    {},
    {"grad_accumulation": 2},
    {"optimizer": "sgd"},
    {"activation_checkpointing": True},
    {"num_workers": 1},
    {"empty_cache_every": 25},
)
_FAULTS: Sequence[tuple[str, LeakSeries, int]] = (
    ("leak:graph", LeakSeries.ALLOCATED, 64),
    ("leak:hidden", LeakSeries.ALLOCATED, 128),
    ("leak:list", LeakSeries.ALLOCATED, 256),
    ("leak:cache", LeakSeries.ALLOCATED, 512),
    ("leak:host", LeakSeries.HOST, 256),
    ("leak:worker", LeakSeries.WORKERS, 512),
    ("fragmentation", LeakSeries.FRAGMENTATION, 512),
)


def plans(healthy: int, leaking: int) -> Iterator[Plan]:
    """So many runs of each kind, through all models, settings and faults in turn."""
    for number in range(healthy):
        settings = _MODELS[number % len(_MODELS)] | _HEALTHY[number // 2 % len(_HEALTHY)]
        yield Plan({**settings, "seed": number})
    for number in range(leaking):
        fault, series, kib = _FAULTS[number % len(_FAULTS)]
        settings = dict(_MODELS[number % len(_MODELS)])
        if series is LeakSeries.WORKERS:
            settings["num_workers"] = 1
        yield Plan({**settings, "seed": number, "inject": f"{fault}:{kib}KiB"}, series, kib * 1024)


def run_all(expected: Sequence[Plan], folder: Path, seconds: float) -> list[Ran]:
    """Train each plan for so long, one after the other, in a process of its own: memory that a run before
    left free would hide what the next one takes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.bench.leak_runs"])
    ran = []
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        for number, plan in enumerate(expected):
            place = folder / str(number)
            place.mkdir()
            ran.append(pool.submit(train, plan, place, seconds).result())
    return ran


def train(plan: Plan, folder: Path, seconds: float) -> Ran:
    """Train for so long, with one of torch's threads; what the detector said."""
    torch.set_num_threads(1)
    device = CpuDevice.open()
    workload = cpu_workload(device, max_seconds=seconds, **plan.settings)
    try:
        with Recording(workload, device, folder) as recording:
            recording.train(MANY_STEPS)
        assert not recording.errors, recording.errors
        with LogReader(recording.log) as log:
            steps = log.extent().steps
            last = {LeakSeries(row.series): row for row in log.memory.leaks()}
            called = [event.step for _, event in log.events() if event.kind == EventKind.LEAK]
    finally:
        workload.close()
    return Ran(plan, steps, last, min(called, default=None))

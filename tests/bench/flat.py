"""Measure whether recording stays what it is over a million steps, and over many real ones.

The time a step takes and the process's memory at the run's end are compared with those at its start.
"""

import hashlib
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.device.cpu.device import CpuDevice
from harness.records.run import EventKind
from harness.settings.resolve import resolve
from harness.store.reader import LogReader
from harness.watch.training import Replaced, Wrapper
from tests.bench.figures import Figure
from tests.bench.rig import Recording, cpu_workload

_STEP_US = 120.0
_STEPS, _QUICK_STEPS = 1_000_000, 200_000
_REAL_STEPS, _QUICK_REAL_STEPS = 20_000, 5_000
_LOOKED_AT = 5_000
"""Steps at the end of each tenth of a run."""
MOST_SLOWER = 1.05
MOST_GROWTH_MIB = 4.0


class Pacer:
    """A workload that computes nothing of use: each step hashes for some `_STEP_US`, and like a small model's
    kernels it does so without the interpreter's lock."""

    micro_batches = 1
    samples_per_step = 1
    tokens_per_step = None

    def __init__(self) -> None:
        self.settings = resolve({"model": "mlp"})
        self.model, self.data = torch.nn.Linear(1, 1), None
        self.optimizer = torch.optim.SGD(self.model.parameters())
        self.loss = torch.zeros(())
        self._block = bytes(_block_bytes())

    def next_batch(self) -> None:
        """No batch."""

    def to_device(self, _batch: None) -> tuple[None, None]:
        """Nothing to copy."""
        return None, None

    def forward(self, _inputs: None, _targets: None) -> None:
        """The whole work."""
        hashlib.sha256(self._block)

    def backward(self, _loss: None) -> None:
        """No gradients."""

    def update(self) -> None:
        """No weights."""

    def tidy(self, _step: int) -> None:
        """Nothing to tidy."""

    def wrap(self, call: str, wrapper: Wrapper) -> Replaced:
        """Like that of a workload."""
        return Replaced(self, call, wrapper)

    def worker_pids(self) -> list[int]:
        """No workers."""
        return []


def _block_bytes() -> int:
    block = bytes(1 << 20)
    hashlib.sha256(block)
    began = time.perf_counter()
    hashlib.sha256(block)
    return max(4096, int(len(block) * _STEP_US / 1e6 / (time.perf_counter() - began)))


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The two long runs."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [*_idle_steps(folder / "idle", is_quick), *_real_steps(folder / "real", is_quick)]
    finally:
        torch.set_num_threads(threads)


def _idle_steps(folder: Path, is_quick: bool) -> list[Figure]:
    steps = _QUICK_STEPS if is_quick else _STEPS
    pacer: Any = Pacer()
    run = _record(pacer, CpuDevice.open(), folder, steps)
    name = f"{steps:,} steps of {_STEP_US:.0f} µs"
    slower = run.medians_us[-1] / run.medians_us[0]
    return [
        Figure(f"{name}: the median step, by tenths of the run", run.medians_us, "µs"),
        Figure(f"{name}: last tenth to first", [slower], "×", MOST_SLOWER),
        Figure(f"{name}: RSS grows after the first tenth", [run.rss_growth_mib], "MiB", MOST_GROWTH_MIB),
        Figure(f"{name}: not recorded", [steps - run.recorded], "steps", 0),
    ]


def _real_steps(folder: Path, is_quick: bool) -> list[Figure]:
    steps = _QUICK_REAL_STEPS if is_quick else _REAL_STEPS
    device = CpuDevice.open()
    workload = cpu_workload(device, model="mlp")
    run = _record(workload, device, folder, steps)
    workload.close()
    name = f"{steps:,} steps of the mlp"
    return [
        Figure(f"{name}: RSS grows after the first tenth", [run.rss_growth_mib], "MiB", MOST_GROWTH_MIB),
        Figure(f"{name}: what malloc holds grows", [run.heap_growth_mib], "MiB", MOST_GROWTH_MIB),
        Figure(f"{name}: not recorded", [steps - run.recorded], "steps", 0),
    ]


class _Run(NamedTuple):
    """Figures from the log of a run: the median step of each tenth, and how much more is held at the end of
    the last tenth than at the end of the first."""

    medians_us: list[float]
    rss_growth_mib: float
    heap_growth_mib: float
    recorded: int


def _record(workload: Any, device: CpuDevice, folder: Path, steps: int) -> _Run:
    folder.mkdir()
    with Recording(workload, device, folder) as recording:
        recording.train(steps)
    assert not recording.errors, recording.errors
    tenth = steps // 10
    with LogReader(recording.log) as log:
        gaps = [event for _, event in log.events() if event.kind == EventKind.GAP]
        tenths = [log.steps(end - min(_LOOKED_AT, tenth) + 1, end) for end in range(tenth, steps + 1, tenth)]
        recorded = 0 if gaps else log.extent().steps
    first, last = tenths[0][-1], tenths[-1][-1]
    return _Run(
        [statistics.median(row.step_ns for row in rows) / 1e3 for rows in tenths],
        _growth_mib(first.rss_bytes, last.rss_bytes),
        _growth_mib(first.allocated_bytes, last.allocated_bytes),
        recorded,
    )


def _growth_mib(first_bytes: int | None, last_bytes: int | None) -> float:
    assert first_bytes is not None
    assert last_bytes is not None
    return (last_bytes - first_bytes) / 2**20

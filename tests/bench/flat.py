"""Whether recording stays what it is over a million steps, and over many real ones.

The time a step takes and the process's memory at the run's end are compared with those at its start.
"""

import hashlib
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from harness.device.cpu import CpuDevice
from harness.records import EventKind, StepRow
from harness.selection import resolve
from harness.store.reader import LogReader
from tests.bench.figures import Figure
from tests.bench.rig import Recording, cpu_workload

_STEP_US = 120.0
_STEPS, _QUICK_STEPS = 1_000_000, 200_000
_REAL_STEPS, _QUICK_REAL_STEPS = 20_000, 5_000
_SEGMENTS = 10
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
    rows, recorded = _record(pacer, CpuDevice.open(), folder, steps)
    times_us = [(end.t_ns - start.t_ns) / (end.step - start.step) / 1e3 for start, end in pairwise(rows)]
    name = f"{steps:,} steps of {_STEP_US:.0f} µs"
    return [
        Figure(f"{name}: a step, by tenths of the run", times_us, "µs"),
        Figure(f"{name}: last tenth to first", [times_us[-1] / times_us[0]], "×", MOST_SLOWER),
        Figure(f"{name}: RSS grows after the first tenth", [_growth_mib(rows, _rss)], "MiB", MOST_GROWTH_MIB),
        Figure(f"{name}: not recorded", [steps - recorded], "steps", 0),
    ]


def _real_steps(folder: Path, is_quick: bool) -> list[Figure]:
    steps = _QUICK_REAL_STEPS if is_quick else _REAL_STEPS
    device = CpuDevice.open()
    workload = cpu_workload(device, model="mlp")
    rows, recorded = _record(workload, device, folder, steps)
    workload.close()
    name = f"{steps:,} steps of the mlp"
    return [
        Figure(f"{name}: RSS grows after the first tenth", [_growth_mib(rows, _rss)], "MiB", MOST_GROWTH_MIB),
        Figure(f"{name}: what malloc holds grows", [_growth_mib(rows, _allocated)], "MiB", MOST_GROWTH_MIB),
        Figure(f"{name}: not recorded", [steps - recorded], "steps", 0),
    ]


def _record(workload: Any, device: CpuDevice, folder: Path, steps: int) -> tuple[list[StepRow], int]:
    """The rows at the ends of the run's tenths, and how many steps the log holds."""
    folder.mkdir()
    with Recording(workload, device, folder) as recording:
        recording.train(steps)
    assert not recording.errors, recording.errors
    with LogReader(folder / "log.sqlite3") as log:
        gaps = [event.message for _, event in log.events() if event.kind == EventKind.GAP]
        places = [max(1, steps * tenth // _SEGMENTS) for tenth in range(_SEGMENTS + 1)]
        rows = [row for place in places for row in log.steps(place, place)]
        recorded = log.extent().steps if not gaps else 0
    return rows, recorded


def _rss(row: StepRow) -> int | None:
    return row.rss_bytes


def _allocated(row: StepRow) -> int | None:
    return row.allocated_bytes


def _growth_mib(rows: list[StepRow], figure: Callable[[StepRow], int | None]) -> float:
    first, last = figure(rows[1]), figure(rows[-1])
    assert first is not None
    assert last is not None
    return (last - first) / 2**20

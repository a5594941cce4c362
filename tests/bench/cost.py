"""What recording costs training: the same steps bare and recorded, in interleaved blocks.

Bare is a plain loop over the same workload, with no thread of ours alive; recorded is the real loop with
everything a run does beside it. One of torch's threads, so that a core is left for the writer. The median
step shows what a step pays, undisturbed by what else the machine does; the mean has the rare waits in it: for
the interpreter's lock, for a look at the memory.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch

from harness.device.cpu import CpuDevice
from harness.store.reader import LogReader
from harness.train.workload import Workload
from tests.bench.figures import Figure
from tests.bench.rig import Recording, cpu_workload

MOST_EXTRA_US = 10.0
MOST_SHARE_PCT = 1.0
_PAIRS, _QUICK_PAIRS = 16, 6
_BLOCK_S, _QUICK_BLOCK_S = 1.5, 0.6
_LEAST_STEPS = 400
_LONGER_BATCH = 512
"""Makes a step of the mlp take some two milliseconds."""


class Block(NamedTuple):
    """Microseconds a step: of the median one, on average, and of the training thread's processor time."""

    median_us: float
    mean_us: float
    cpu_us: float


class _Pair(NamedTuple):
    bare: Block
    recorded: Block


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The cost on a short step (the mlp's own batch) and on one of about two milliseconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        device = CpuDevice.open()
        short = _pairs(cpu_workload(device, model="mlp"), device, folder, is_quick)
        longer = _pairs(cpu_workload(device, model="mlp", batch_size=_LONGER_BATCH), device, folder, is_quick)
    finally:
        torch.set_num_threads(threads)
    shares_pct = [100 * (pair.recorded.mean_us / pair.bare.mean_us - 1) for pair in longer]
    return [
        *_told("short step", short),
        *_told("longer step", longer),
        Figure("longer step: recording adds, of the time on average", shares_pct, "%", MOST_SHARE_PCT),
    ]


def _told(name: str, pairs: list[_Pair]) -> Iterator[Figure]:
    yield Figure(f"{name}: bare, median", [pair.bare.median_us for pair in pairs], "µs")
    medians_us = [pair.recorded.median_us - pair.bare.median_us for pair in pairs]
    yield Figure(f"{name}: recording adds to the median", medians_us, "µs", MOST_EXTRA_US)
    yield Figure(f"{name}: on average", [p.recorded.mean_us - p.bare.mean_us for p in pairs], "µs")
    yield Figure(f"{name}: of processor time", [p.recorded.cpu_us - p.bare.cpu_us for p in pairs], "µs")


def _pairs(workload: Workload, device: CpuDevice, folder: Path, is_quick: bool) -> list[_Pair]:
    """Blocks of bare and recorded steps, side by side, which comes first changing from pair to pair."""
    _bare(workload, _LEAST_STEPS)
    block_s = _QUICK_BLOCK_S if is_quick else _BLOCK_S
    steps = max(_LEAST_STEPS, int(block_s * 1e6 / _bare(workload, _LEAST_STEPS).mean_us))
    pairs = []
    for number in range(_QUICK_PAIRS if is_quick else _PAIRS):
        if number % 2:
            bare = _bare(workload, steps)
            pairs.append(_Pair(bare, _recorded(workload, device, folder, steps)))
        else:
            recorded = _recorded(workload, device, folder, steps)
            pairs.append(_Pair(_bare(workload, steps), recorded))
    workload.close()
    return pairs


def _bare(workload: Workload, steps: int) -> Block:
    clock_ns = time.perf_counter_ns
    cpu_ns = time.thread_time_ns()
    ends_ns = [clock_ns()]
    for _ in range(steps):
        for _ in range(workload.micro_batches):
            inputs, targets = workload.to_device(workload.next_batch())
            loss = workload.forward(inputs, targets)
            workload.backward(loss)
        workload.update()
        ends_ns.append(clock_ns())
    return _block([end - start for start, end in pairwise(ends_ns)], time.thread_time_ns() - cpu_ns)


def _recorded(workload: Workload, device: CpuDevice, folder: Path, steps: int) -> Block:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        with Recording(workload, device, Path(place)) as recording:
            cpu_ns = time.thread_time_ns()
            recording.train(steps)
            cpu_ns = time.thread_time_ns() - cpu_ns
        assert not recording.errors, recording.errors
        with LogReader(recording.log) as log:
            rows = log.last_steps(steps)
    assert len(rows) == steps
    return _block([row.step_ns for row in rows], cpu_ns)


def _block(steps_ns: list[int], cpu_ns: int) -> Block:
    return Block(
        statistics.median(steps_ns) / 1e3, statistics.fmean(steps_ns) / 1e3, cpu_ns / len(steps_ns) / 1e3
    )

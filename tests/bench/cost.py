"""What recording costs training: the same steps bare and recorded, in interleaved blocks.

Bare is a plain loop over the same workload, with no thread of ours alive; recorded is the real loop with
everything a run does beside it. One of torch's threads, so that a core is left for the writer.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from harness.device.cpu import CpuDevice
from harness.train.workload import Workload
from tests.bench.figures import Figure
from tests.bench.rig import Recording, cpu_workload

MOST_EXTRA_US = 10.0
MOST_SHARE_PCT = 1.0
_PAIRS, _QUICK_PAIRS = 16, 6
_BLOCK_S, _QUICK_BLOCK_S = 1.5, 0.6
_LEAST_STEPS = 400


class Block(NamedTuple):
    """Microseconds a step, on the clock and of the training thread's processor time."""

    wall_us: float
    cpu_us: float


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The cost on a short step (the mlp's own batch) and on one of about two milliseconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        device = CpuDevice.open()
        short = _pairs(cpu_workload(device, model="mlp"), device, folder, is_quick)
        longer = _pairs(cpu_workload(device, model="mlp", batch_size=512), device, folder, is_quick)
    finally:
        torch.set_num_threads(threads)
    return [*_told("short step", short), *_told("longer step", longer, _share(longer))]


def _told(name: str, pairs: list[tuple[Block, Block]], *more: Figure) -> Iterator[Figure]:
    yield Figure(f"{name}: bare", [bare.wall_us for bare, _ in pairs], "µs")
    extra_us = [recorded.wall_us - bare.wall_us for bare, recorded in pairs]
    yield Figure(f"{name}: recording adds", extra_us, "µs", MOST_EXTRA_US)
    yield Figure(f"{name}: of that on the thread itself", [r.cpu_us - b.cpu_us for b, r in pairs], "µs")
    yield from more


def _share(pairs: list[tuple[Block, Block]]) -> Figure:
    shares_pct = [100 * (recorded.wall_us / bare.wall_us - 1) for bare, recorded in pairs]
    return Figure("longer step: recording adds", shares_pct, "%", MOST_SHARE_PCT)


def _pairs(workload: Workload, device: CpuDevice, folder: Path, is_quick: bool) -> list[tuple[Block, Block]]:
    """Blocks of bare and recorded steps, side by side, which comes first changing from pair to pair."""
    block_s = _QUICK_BLOCK_S if is_quick else _BLOCK_S
    _bare(workload, _LEAST_STEPS)
    step_us = _timed(lambda steps: _bare(workload, steps), _LEAST_STEPS).wall_us
    steps = max(_LEAST_STEPS, int(block_s * 1e6 / step_us))
    pairs = []
    for number in range(_QUICK_PAIRS if is_quick else _PAIRS):
        if number % 2:
            bare = _timed(lambda steps: _bare(workload, steps), steps)
            pairs.append((bare, _recorded(workload, device, folder, steps)))
        else:
            recorded = _recorded(workload, device, folder, steps)
            pairs.append((_timed(lambda steps: _bare(workload, steps), steps), recorded))
    workload.close()
    return pairs


def _bare(workload: Workload, steps: int) -> None:
    for _ in range(steps):
        for _ in range(workload.micro_batches):
            inputs, targets = workload.to_device(workload.next_batch())
            loss = workload.forward(inputs, targets)
            workload.backward(loss)
        workload.update()


def _recorded(workload: Workload, device: CpuDevice, folder: Path, steps: int) -> Block:
    with _scratch(folder) as place, Recording(workload, device, place) as recording:
        block = _timed(recording.train, steps)
    assert not recording.errors, recording.errors
    return block


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        yield Path(place)


def _timed(take: Callable[[int], None], steps: int) -> Block:
    wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
    take(steps)
    wall_ns, cpu_ns = time.perf_counter_ns() - wall_ns, time.thread_time_ns() - cpu_ns
    return Block(wall_ns / steps / 1e3, cpu_ns / steps / 1e3)

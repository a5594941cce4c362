"""What the two lines of Stepscope add to a step of a loop of one's own, on the CPU.

Blocks of the same steps in one process, bare and watched in turns: each watched block opens a run of its own,
takes some steps, and is compared with the bare ones before and after it. The bare loop is without Stepscope:
torch's entry points are its own again.
"""

import gc
import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from tests.bench.figures import Figure

_TURNS, _QUICK_TURNS = 30, 4
_STEPS, _DISCARDED = 600, 100
_BATCH, _WIDTH = 64, 256
MOST_US = 15.0


class _Block(NamedTuple):
    """Microseconds per step: of the median one, on average, and of the processor time of its thread."""

    median_us: float
    mean_us: float
    cpu_us: float

    def minus(self, before: "_Block", after: "_Block") -> "_Block":
        return _Block(*(one - fmean(bare) for one, *bare in zip(self, before, after, strict=True)))


class _Loop:
    """A multilayer perceptron on samples of noise, with a DataLoader, a loss and Adam."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 10))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        samples = _BATCH * _STEPS
        data = TensorDataset(torch.randn(samples, _WIDTH), torch.randint(0, 10, (samples,)))
        self.loader: DataLoader[Any] = DataLoader(data, batch_size=_BATCH, num_workers=0)

    def bare(self) -> _Block:
        return self._measure(self.loader, None)

    def watched(self, home: Path) -> _Block:
        with stepscope.watch(self.model, self.optimizer, home=home) as run:
            return self._measure(run.steps(self.loader), run)

    def _measure(self, batches: Iterable[Any], run: stepscope.Run | None) -> _Block:
        ends_ns: list[int] = []
        cpu_ns = 0
        for step, (inputs, labels) in enumerate(batches):
            if step == _DISCARDED:
                cpu_ns = time.thread_time_ns()
            loss = nn.functional.cross_entropy(self.model(inputs), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if run is not None:
                run.log(loss=loss)
            ends_ns.append(time.perf_counter_ns())
        taken = len(ends_ns) - _DISCARDED
        cpu_us = (time.thread_time_ns() - cpu_ns) / taken / 1e3
        ends_ns = ends_ns[_DISCARDED - 1 :]
        steps_us = [(end - begin) / 1e3 for begin, end in itertools.pairwise(ends_ns)]
        return _Block(median(steps_us), fmean(steps_us), cpu_us)


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The differences of all turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    try:
        bare, extra = _turns(folder, _QUICK_TURNS if is_quick else _TURNS)
    finally:
        torch.set_num_threads(threads)
    of = "two lines and run.log"
    return [
        Figure("bare loop, median step", [block.median_us for block in bare], "µs"),
        Figure(f"{of} add to the median step", [block.median_us for block in extra], "µs", MOST_US),
        Figure(f"{of} add to the mean step", [block.mean_us for block in extra], "µs"),
        Figure(f"{of} add, processor time of the thread", [block.cpu_us for block in extra], "µs"),
    ]


def _turns(folder: Path, turns: int) -> tuple[list[_Block], list[_Block]]:
    loop = _Loop()
    loop.watched(folder / "warm")
    bare, extra = [loop.bare()], []
    for turn in range(turns):
        watched = loop.watched(folder / str(turn))
        bare.append(loop.bare())
        extra.append(watched.minus(*bare[-2:]))
    return bare, extra

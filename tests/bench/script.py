"""What Stepscope adds to a step of a person's own loop on the CPU, beside what it adds to the catalog's loop.

Blocks of the same steps in one process take turns: bare, as under `stepscope run` (zero lines), bare, with
the two lines and `run.log`. Each block under watch opens a run of its own, takes some steps, and is compared
with the bare ones before and after it. The bare loop is without Stepscope: torch's entry points are its own
again. The catalog's loop takes turns with its own bare loop, with steps about as long.
"""

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope
from harness.device.cpu.device import CpuDevice
from tests.bench.blocks import find_batch, on_one_thread, sized_workload
from tests.bench.cost import recorded_turns
from tests.bench.figures import Figure

_TURNS, _QUICK_TURNS = 30, 4
_STEPS, _DISCARDED = 600, 100
_BATCH, _WIDTH = 64, 256
_OWN_TURN_S = 1.0
MOST_US = 15.0


class _Block(NamedTuple):
    """Microseconds per step: of the median one, on average, and of the processor time of its thread."""

    median_us: float
    mean_us: float
    cpu_us: float

    def minus(self, before: "_Block", after: "_Block") -> "_Block":
        return _Block(*(one - fmean(bare) for one, *bare in zip(self, before, after, strict=True)))


class _Turn(NamedTuple):
    """The mean of the bare blocks before and after a block under watch, and what that adds."""

    bare: _Block
    extra: _Block


class _Times(Protocol):
    """Microseconds per step, as in `_Block` and in the blocks of the catalog's loop."""

    @property
    def median_us(self) -> float: ...

    @property
    def mean_us(self) -> float: ...

    @property
    def cpu_us(self) -> float: ...


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

    def with_zero_lines(self, home: Path) -> _Block:
        with stepscope.watch(self.model, self.optimizer, home=home):
            return self._measure(self.loader, None)

    def with_two_lines(self, home: Path) -> _Block:
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


def figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """The differences of all turns, and their ratios to the bare loop."""
    turns = _QUICK_TURNS if is_quick else _TURNS
    with on_one_thread():
        bare_us, forms = _turns(folder, turns)
        yield Figure("bare loop, median step", bare_us, "µs")
        for form, compared in forms.items():
            yield from _compared(form, [(turn.extra, turn.bare) for turn in compared], MOST_US)
        device = CpuDevice.open()
        workload = sized_workload(device, find_batch(device, median(bare_us) / 1e3))
        own = recorded_turns(workload, device, folder, _STEPS * median(bare_us) / 1e6, turns * _OWN_TURN_S)
        workload.close()
    yield from _compared("the catalog's loop", [(turn.extra, turn.bare) for turn in own], None)


def _compared(form: str, turns: Sequence[tuple[_Times, _Times]], most_us: float | None) -> Iterator[Figure]:
    """The figures of what is added to bare blocks."""
    yield Figure(f"{form}: added to the median step", [one.median_us for one, _ in turns], "µs", most_us)
    ratios = [1 + one.median_us / bare.median_us for one, bare in turns]
    yield Figure(f"{form}: median step to the bare one", ratios, "×")
    yield Figure(f"{form}: added to the mean step", [one.mean_us for one, _ in turns], "µs")
    yield Figure(f"{form}: added processor time of the thread", [one.cpu_us for one, _ in turns], "µs")


def _turns(folder: Path, turns: int) -> tuple[list[float], dict[str, list[_Turn]]]:
    loop = _Loop()
    loop.with_two_lines(folder / "warm")
    forms = {"zero lines": loop.with_zero_lines, "two lines and run.log": loop.with_two_lines}
    compared: dict[str, list[_Turn]] = {form: [] for form in forms}
    before = loop.bare()
    bare_us = [before.median_us]
    for turn, (form, take) in product(range(turns), forms.items()):
        watched, after = take(folder / f"{turn} {form}"), loop.bare()
        bare = _Block(*map(fmean, zip(before, after, strict=True)))
        compared[form].append(_Turn(bare, watched.minus(before, after)))
        bare_us.append(after.median_us)
        before = after
    return bare_us, compared

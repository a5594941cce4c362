"""Measure what the measurement of a rank's waits (`harness.watch.rank_waits`) adds to a backward pass.

One process without other ranks, so that nothing waits: blocks of backward passes of a small model with and
without it take turns.
"""

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import torch
from torch import nn

from harness.watch.rank_waits import RankWaits
from harness.watch.timing import StepTimer
from tests.bench.blocks import on_one_thread
from tests.bench.figures import Figure

_TURNS, _QUICK_TURNS, _PASSES = 60, 10, 300
MOST_US = 10.0


def figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """The bare backward pass, and what is added to it."""
    del folder
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    inputs = torch.randn(32, 64)
    bare_us, added_us = [], []
    with on_one_thread():
        before_us = _backward_us(model, inputs)
        for _ in range(_QUICK_TURNS if is_quick else _TURNS):
            waits = RankWaits(StepTimer(perf_counter_ns))
            waits.follow(model)
            measured_us = _backward_us(model, inputs, waits)
            waits.close()
            after_us = _backward_us(model, inputs)
            bare_us.append(before_us)
            added_us.append(measured_us - (before_us + after_us) / 2)
            before_us = after_us
    yield Figure("bare backward pass", bare_us, "µs")
    yield Figure("the waits for other ranks: added to a backward pass", added_us, "µs", MOST_US)


def _backward_us(model: nn.Module, inputs: torch.Tensor, waits: RankWaits | None = None) -> float:
    times_ns = []
    for _ in range(_PASSES):
        loss = model(inputs).sum()
        began_ns = perf_counter_ns()
        loss.backward()
        if waits is not None:
            waits.take()
        times_ns.append(perf_counter_ns() - began_ns)
    return median(times_ns) / 1e3

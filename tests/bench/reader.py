"""Measure how long it takes to read a run for a chart, however long the run is."""

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from harness.records.run import StepRow
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from tests.bench.figures import Figure
from tests.bench.writer import cpu_row
from tests.store_factories import a_run

SIZES = (1_000, 100_000, 10_000_000)
QUICK_SIZES = SIZES[:2]
POINTS = 1_000
COLUMNS = (
    "step_ns",
    "data_wait_ns",
    "forward_ns",
    "backward_ns",
    "optimizer_ns",
    "loss",
    "allocated_bytes",
    "reserved_bytes",
    "peak_allocated_bytes",
)
"""What the live page draws."""
MOST_MS = 30.0
"""The live page has 35 ms a tick for everything."""
_READS = 15
_BLOCK = 50_000
_VARIETY = 5_000


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The whole run, a third of it and its newest thousand steps, at each length."""
    result = []
    for steps in QUICK_SIZES if is_quick else SIZES:
        path = folder / f"{steps}.sqlite3"
        _write(path, steps)
        parts = {
            "all": (1, steps),
            "a third": (steps // 3, 2 * steps // 3),
            "the newest thousand": (steps - 999, steps),
        }
        with LogReader(path) as log:
            for name, (first, last) in parts.items():
                times_ms = _read(partial(log.series, first, last, POINTS, COLUMNS))
                result.append(Figure(f"reader, {steps:,} steps: {name}", times_ms, "ms", MOST_MS))
        path.unlink()
    return result


def _read(question: Callable[[], object]) -> list[float]:
    times_ms = []
    for _ in range(_READS):
        began = time.perf_counter()
        question()
        times_ms.append((time.perf_counter() - began) * 1e3)
    return times_ms


def _write(path: Path, steps: int) -> None:
    """A log of so many steps; a few thousand different ones come again and again."""
    rng = random.Random(0)
    rows = [cpu_row(rng, step) for step in range(1, _VARIETY + 1)]
    with LogAppender(path, a_run()) as log:
        for first in range(1, steps + 1, _BLOCK):
            log.append(list(_renumbered(rows, first, min(first + _BLOCK - 1, steps))))


def _renumbered(rows: list[StepRow], first: int, last: int) -> Iterator[StepRow]:
    for step in range(first, last + 1):
        row = rows[step % len(rows)]
        yield StepRow._make((step, step * 2_000_000, *row[2:]))

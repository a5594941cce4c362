"""Measure whether a run is as fast after a profile as before, and what a profile costs it.

Two processes train the same in turns, a few steps each, so that what else the machine does falls on both.
Then one of them takes its first profile, and they go on. Whatever a profile leaves behind stays in its
process, so each pair of processes gives one ratio: of one to the other, after to before.
"""

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import torch

from harness.device.cpu.device import CpuDevice
from harness.device.find import open_device
from harness.profiling.events import collector_off, read
from harness.profiling.nesting import sum_events
from harness.profiling.rows import rows
from harness.records.profile import ProfileRow
from harness.records.run import CommandKind, CommandRow
from harness.train.loop import take_step
from harness.watch.inbox import Inbox
from tests.bench.figures import Figure
from tests.bench.rig import cpu_workload
from tests.train_factories import FakeJournal, a_step, open_steps

_SMALL: dict[str, Any] = {"model": "mlp"}
_GPT_2: dict[str, Any] = {
    "model": "transformer",
    "preset": "h200",
    "data": "stdlib-text",
    "batch_size": 1,
    "sequence_length": 128,
}
"""GPT-2's layers and width (124 million weights with its vocabulary, 86 with bytes); the number of operators
does not depend on the batch."""
MOST_RATIO = 1.02
_TURNS, _STEPS_A_TURN = 100, 40


class _Run:
    """A run in this process, its profiles taken as those of any run."""

    def __init__(self, values: dict[str, Any], captures: Path) -> None:
        device = open_device("cpu")
        assert isinstance(device, CpuDevice)
        self.workload = cpu_workload(device, **values)
        self.journal, self._inbox = FakeJournal(), Inbox()
        self._steps = open_steps(device, self.workload, self.journal, captures, inbox=self._inbox).steps
        self._step = 0

    def take(self, steps: int) -> list[int]:
        """So many steps; their durations in nanoseconds."""
        result = []
        for _ in range(steps):
            self._step += 1
            self._steps.proceed(self._step)
            times_ns, _, _ = take_step(self.workload, self._steps.timer, self._step)
            result.append(times_ns[-1] - times_ns[0])
        return result

    def profile(self) -> ProfileRow:
        """One profile of three steps."""
        self._inbox.put(CommandRow(f"p{self._step}", 1, CommandKind.PROFILE, "{}", "bench"))
        self.take(12)
        row: ProfileRow = self.journal.of(ProfileRow)[-1]
        return row


def serve(values: dict[str, Any], captures: str, pipe: Connection) -> None:
    """A run in a process of its own: takes as many steps as it is told, 0: a profile, and answers with the
    median step or the profile's row; until the pipe is closed."""
    torch.set_num_threads(1)
    run = _Run(values, Path(captures))
    try:
        while True:
            steps = pipe.recv()
            pipe.send(median(run.take(steps)) if steps else run.profile())
    except EOFError:
        run.workload.close()


class _Process:
    """The other end of `serve`. A context manager."""

    def __init__(self, values: dict[str, Any], captures: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(values, str(captures), theirs))
        self._process.start()
        theirs.close()

    def take(self, steps: int) -> float:
        """The median of so many steps, in nanoseconds."""
        self._pipe.send(steps)
        return float(self._pipe.recv())

    def profile(self) -> ProfileRow:
        """A profile of three steps."""
        self._pipe.send(0)
        row: ProfileRow = self._pipe.recv()
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join()


def figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """The ratios of a small step, and what a profile of a GPT-2-size model costs."""
    ratios, taken, steps_ns = [], [], []
    for number in range(3 if is_quick else 9):
        with _Process(_SMALL, folder / f"{number}") as one, _Process(_SMALL, folder / "none") as other:
            for process in (one, other):
                process.take(100)
            before = _relative(one, other)
            taken.append(one.profile())
            for process in (one, other):
                process.take(20)
            ratios.append(_relative(one, other) / before)
            steps_ns.append(other.take(100))
    small = f"{median(steps_ns) / 1e6:.2g} ms step"
    yield Figure(f"{small}: after a process's first profile to before", ratios, "×", MOST_RATIO)
    yield from _costs(small, taken)
    if not is_quick:
        with _Process(_GPT_2, folder / "large") as large:
            large.take(6)
            yield from _costs("GPT-2 size", [large.profile() for _ in range(3)])
        yield from reading(_GPT_2)


def reading(values: dict[str, Any]) -> Iterator[Figure]:
    """Return what reading and adding up three steps takes of the processor, beside PyTorch's own way."""
    torch.set_num_threads(1)
    device = open_device("cpu")
    assert isinstance(device, CpuDevice)
    workload = cpu_workload(device, **values)
    ours_s, theirs_s, count = [], [], 0
    for _ in range(3):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
            for _ in range(3):
                a_step(workload)
        began_s = time.thread_time()
        with collector_off():
            events = read(profiled.profiler.kineto_results.events(), is_on_device=False)
            rows(1, sum_events(events, is_on_device=False), {}, False, False, False)
        ours_s.append(time.thread_time() - began_s)
        began_s = time.thread_time()
        profiled.key_averages()
        theirs_s.append(time.thread_time() - began_s)
        count = len(events)
    workload.close()
    yield Figure(f"{count:,} events: read and added up", [1e3 * value for value in ours_s], "ms")
    yield Figure(f"{count:,} events: key_averages()", [1e3 * value for value in theirs_s], "ms")


def _relative(one: _Process, other: _Process) -> float:
    """Return how long a step of one takes to that of the other, in turns."""
    return median(one.take(_STEPS_A_TURN) / other.take(_STEPS_A_TURN) for _ in range(_TURNS))


def _costs(name: str, rows: list[ProfileRow]) -> Iterator[Figure]:
    waits = [row.took_ns / 1e6 for row in rows if row.took_ns is not None]
    yield Figure(f"{name}: training waits for a profile of 3 steps", waits, "ms")
    slowdowns = [row.slowdown for row in rows if row.slowdown is not None]
    yield Figure(f"{name}: a profiled step to an ordinary one", slowdowns, "×")

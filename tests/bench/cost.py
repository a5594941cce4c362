"""What recording costs training: the same steps bare and recorded, in blocks in turns.

Bare is a plain loop over the same workload, recorded is the real loop with everything a run does beside it.
One of torch's threads, so that a core is left for the writer. Each recorded block is compared with the bare
ones before and after it, through which what watches the run is held back. What the median step pays is told
by short blocks. The mean, which has the rare waits in it (for the interpreter's lock, for a look at the
memory), is told by blocks of a second, in which everything that is done now and then comes about as often as
in a run. Where things came to lie in memory makes more of a difference than anything measured, and is the
same for a process's whole life: so it is done in several fresh processes, each of which gives one value.

Beside steps of 10 and 100 ms a difference of microseconds cannot be seen. There, what the training thread
spends in our functions is timed within the step, with the caches as the step left them; the marks of the
clock between two phases, which the first way has in it, are left out.
"""

import gc
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import torch

from harness.device.cpu import CpuDevice
from harness.store.reader import LogReader
from harness.train.workload import Workload
from tests.bench.figures import Figure
from tests.bench.rig import Parts, Recording, cpu_workload

MOST_EXTRA_US = 30.0
"""10 each for recording, for watching memory and for telling where time goes."""
MOST_SHARE_PCT = 1.0
"""Of the time of a step of two milliseconds, and of one long enough to bear a reading of the memory."""
_PROCESSES, _QUICK_PROCESSES = (16, 15.0), (8, 10.0)
"""How many, and for how many seconds each takes short blocks, and then long ones."""
_SHORT_STEPS, _LONG_S = 40, 1.0
"""Of the blocks."""
_DISCARDED = 5
_LEAST_STEPS = 400
_LONGER_BATCH = 512
"""Makes a step of the mlp take some two milliseconds."""
_WARM_UP = 20
_LENGTHS_MS = (1, 10, 100)
_WITHIN_S, _QUICK_WITHIN_S = 20.0, 8.0


class Block(NamedTuple):
    """Microseconds a step: of the median one, on average, and of the processor time of the training thread
    and of all others."""

    median_us: float
    mean_us: float
    cpu_us: float
    others_us: float


class Cpu(NamedTuple):
    """Processor time of this thread and of all others of the process."""

    thread_ns: float
    others_ns: float

    @classmethod
    def now(cls) -> "Cpu":
        """So far."""
        thread_ns = time.thread_time_ns()
        return cls(thread_ns, time.process_time_ns() - thread_ns)

    def since(self, before: "Cpu", steps: int) -> "Cpu":
        """For each of so many steps since `before`."""
        return Cpu((self.thread_ns - before.thread_ns) / steps, (self.others_ns - before.others_ns) / steps)


class Turn(NamedTuple):
    """A recorded block, and what a step of the bare ones before and after it takes."""

    recorded: Block
    bare: Block

    @property
    def extra(self) -> Block:
        """What recording adds."""
        return Block(*(recorded - bare for recorded, bare in zip(*self, strict=True)))


class Costs(NamedTuple):
    """What one process found: of each short block, and of each long one."""

    by_short: list[Turn]
    by_long: list[Turn]


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The cost on a short step (the mlp's own batch), on one of some two milliseconds, and within steps of
    about 1, 10 and 100 ms."""
    found: list[Figure] = []
    for name, batch, most_pct in (("short step", None, None), ("longer step", _LONGER_BATCH, MOST_SHARE_PCT)):
        found += _told(name, most_pct, _in_processes(batch, folder, is_quick))
    with _on_one_thread():
        device = CpuDevice.open()
        for length_ms in _LENGTHS_MS:
            found += _within(device, folder, length_ms, _QUICK_WITHIN_S if is_quick else _WITHIN_S)
    return found


@contextmanager
def _on_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # As a training process does, which would else look for garbage in what importing torch made.
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _told(name: str, most_pct: float | None, processes: list[Costs]) -> Iterator[Figure]:
    def of_each(block: str, value: Callable[[Turn], float]) -> list[float]:
        return [median(value(turn) for turn in getattr(costs, block)) for costs in processes]

    most_us = MOST_EXTRA_US if most_pct is None else None
    yield Figure(f"{name}: bare, median", of_each("by_short", lambda turn: turn.bare.median_us), "µs")
    extra_us = of_each("by_short", lambda turn: turn.extra.median_us)
    yield Figure(f"{name}: recording adds to the median", extra_us, "µs", most_us)
    shares_pct = of_each("by_short", lambda turn: 100 * turn.extra.median_us / turn.bare.median_us)
    yield Figure(f"{name}: of the median", shares_pct, "%", most_pct)
    extra_us = of_each("by_long", lambda turn: turn.extra.mean_us)
    yield Figure(f"{name}: recording adds on average", extra_us, "µs")
    shares_pct = of_each("by_long", lambda turn: 100 * turn.extra.mean_us / turn.bare.mean_us)
    yield Figure(f"{name}: of the time", shares_pct, "%")
    cpu_us = of_each("by_long", lambda turn: turn.extra.cpu_us)
    yield Figure(f"{name}: of the training thread's processor time", cpu_us, "µs")
    others_us = of_each("by_long", lambda turn: turn.extra.others_us)
    yield Figure(f"{name}: of other threads' processor time", others_us, "µs")


def _in_processes(batch: int | None, folder: Path, is_quick: bool) -> list[Costs]:
    """The costs as several processes find them, one after the other."""
    processes, seconds = _QUICK_PROCESSES if is_quick else _PROCESSES
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        return [pool.submit(_in_process, batch, folder, seconds).result() for _ in range(processes)]


def _in_process(batch: int | None, folder: Path, seconds: float) -> Costs:
    with _on_one_thread():
        device = CpuDevice.open()
        workload = cpu_workload(device, model="mlp", **({} if batch is None else {"batch_size": batch}))
        costs = Costs(
            turns(workload, device, folder, 0.0, seconds),
            turns(workload, device, folder, _LONG_S, seconds),
        )
        workload.close()
    return costs


def turns(workload: Workload, device: CpuDevice, folder: Path, block_s: float, seconds: float) -> list[Turn]:
    """Take the workload's steps for so many seconds in blocks of `block_s` (of `_SHORT_STEPS` where that is
    more), bare and recorded in turns."""
    bare(workload, _LEAST_STEPS)
    step_us = bare(workload, _LEAST_STEPS).median_us
    block = max(_SHORT_STEPS, int(block_s * 1e6 / step_us))
    steps = block * max(3, int(seconds * 1e6 / step_us / block / 2))
    between: list[Block] = []
    cpu: list[Cpu] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        with Recording(workload, device, Path(place)) as recording:

            def in_turns(parts: Parts) -> None:
                unobserved = parts.unobserved

                def before_step(step: int) -> None:
                    cpu.append(Cpu.now())
                    with recording.gate.closed():
                        between.append(bare(workload, block, _DISCARDED))
                    unobserved.due = step + block
                    parts.timer.restart()
                    cpu.append(Cpu.now())

                unobserved.before_step = before_step  # type: ignore[method-assign]
                unobserved.due = block

            recording.train(steps, in_turns)
        assert not recording.errors, recording.errors
        with LogReader(recording.log) as log:
            rows = log.last_steps(steps)
    assert len(rows) == steps
    recorded: dict[int, list[int]] = {}
    for row in rows:
        if row.step % block >= _DISCARDED:
            recorded.setdefault(row.step // block, []).append(row.step_ns)
    return [
        Turn(
            _block(recorded[number], cpu[2 * number].since(cpu[2 * number - 1], block)),
            Block(*(fmean(pair) for pair in zip(before, after, strict=True))),
        )
        for number, (before, after) in enumerate(pairwise(between), 1)
    ]


def bare(workload: Workload, steps: int, discarded: int = 0) -> Block:
    """So many steps of a plain loop; the first few are taken and not told."""
    clock_ns = time.perf_counter_ns
    began = Cpu.now()
    ends_ns = [clock_ns()]
    for _ in range(steps):
        for _ in range(workload.micro_batches):
            inputs, targets = workload.to_device(workload.next_batch())
            loss = workload.forward(inputs, targets)
            workload.backward(loss)
        workload.update()
        ends_ns.append(clock_ns())
    cpu = Cpu.now().since(began, steps)
    return _block([end - start for start, end in pairwise(ends_ns)][discarded:], cpu)


def _block(steps_ns: list[int], cpu: Cpu) -> Block:
    return Block(median(steps_ns) / 1e3, fmean(steps_ns) / 1e3, cpu.thread_ns / 1e3, cpu.others_ns / 1e3)


class _Within:
    """Adds up what the loop spends in our functions, step by step; a look at the clock costs 0.2 µs of it."""

    def __init__(self) -> None:
        self.spent_ns: list[int] = []
        self._now_ns = 0

    def wrap(self, parts: Parts) -> None:
        """Time everything that the loop calls of `parts`; a step begins with asking whether to go on."""
        proceed: Callable[[int], bool] = self._timed(parts.conductor.proceed)

        def next_step(step: int) -> bool:
            self.spent_ns.append(self._now_ns)
            self._now_ns = 0
            return proceed(step)

        timer: Any = parts.timer
        lap_of, timer_class = timer.__dict__.pop("lap"), type(timer)
        timer.__class__ = type("TimedTimer", (timer_class,), {"lap": self._lap(lap_of)})
        parts.conductor.proceed = next_step  # type: ignore[method-assign]
        parts.losses.take = self._timed(parts.losses.take)
        parts.listener.step_ended = self._timed(parts.listener.step_ended)  # type: ignore[method-assign]

    def _lap(self, lap: Callable[..., None] | None) -> property:
        current = lap

        def get(_timer: Any) -> Callable[..., None] | None:
            return None if current is None else self._timed(current)

        def put(_timer: Any, value: Callable[..., None] | None) -> None:
            nonlocal current
            current = value

        return property(get, put)

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        clock_ns = time.perf_counter_ns

        def timed(*values: Any) -> Any:
            began_ns = clock_ns()
            found = function(*values)
            self._now_ns += clock_ns() - began_ns
            return found

        return timed


def _within(device: CpuDevice, folder: Path, length_ms: int, seconds: float) -> list[Figure]:
    """What the training thread spends in our functions, in steps of about so long."""
    batch = 8
    while True:
        workload = cpu_workload(device, model="mlp", data="synthetic", batch_size=batch)
        bare_us = bare(workload, _WARM_UP).median_us
        if bare_us >= length_ms * 1e3 / 1.4:
            break
        workload.close()
        batch *= 2
    within = _Within()
    steps = max(_WARM_UP + 30, int(seconds * 1e6 / bare_us))
    with tempfile.TemporaryDirectory(dir=folder) as place:
        with Recording(workload, device, Path(place)) as recording:
            recording.train(steps, within.wrap)
        assert not recording.errors, recording.errors
    workload.close()
    spent_us = [spent_ns / 1e3 for spent_ns in within.spent_ns[_WARM_UP:] if spent_ns]
    return [
        Figure(f"{bare_us / 1e3:.1f} ms step: spent in our functions", spent_us, "µs"),
        Figure(
            f"{bare_us / 1e3:.1f} ms step: of the steps' time",
            [100 * fmean(spent_us) / bare_us],
            "%",
            MOST_SHARE_PCT,
        ),
    ]

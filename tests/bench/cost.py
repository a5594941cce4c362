"""Measure what recording costs training, as a ratio to the bare loop: the same steps, bare and observed in
turns.

Beside Stepscope as it comes stand the floor (a deque that a thread empties into SQLite), nothing at all,
which shows how far the machine's own noise reaches, a thread that computes in Python for 2 % of the time
(training waits for the interpreter's lock), and, where `make bench-peers` has installed them, other
libraries on the same loop. All take turns, process by process: where things came to lie in memory makes more
of a difference than anything measured, and is the same for a process's whole life, so each process gives one
value. Microseconds are stated for information alone; they do not travel from one machine to another.

Bare is a plain loop over the same workload; Stepscope's is the real loop with everything that a run does
beside it, and what watches the run is held back while bare blocks run. Of the others nothing is held back:
what they leave to be done later may slow down the bare blocks, to their advantage.

Beside steps of 10 and 100 ms such a difference cannot be seen. There, what the training thread spends in our
functions is timed within the step, with the caches as the step left them; the marks of the clock between two
phases, which the first way has in it, are left out.
"""

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

from torch import nn

from harness.device.cpu.device import CpuDevice
from harness.settings.spec import change
from harness.store.reader import LogReader
from harness.train.workload import Workload
from harness.watch.boundary import Boundary, StepAction
from harness.watch.steps import Steps
from tests.bench.blocks import (
    DISCARDED,
    LONG_S,
    Block,
    Costs,
    Cpu,
    Turn,
    bare,
    block_of,
    find_batch,
    logged_costs,
    on_one_thread,
    plan,
    sized_workload,
    turns,
)
from tests.bench.figures import Figure
from tests.bench.floor import Floor
from tests.bench.other_thread import beside_other_thread
from tests.bench.peers import NAMES, peer_costs
from tests.bench.rig import Recording

SHORT_STEP_MS, LONG_STEP_MS = 0.6, 5.0
STEPS_MS = {SHORT_STEP_MS: 1.02, LONG_STEP_MS: 1.005}
"""Lengths of a step, and the most that recording may make of its time, as a ratio to the bare loop."""
MOST_SHARE_PCT = 1.0
"""Of the time of a step, within our functions."""
_PROCESSES, _QUICK_PROCESSES = (16, 15.0), (8, 6.0)
"""How many for each, and for how many seconds each process takes short blocks, and then long ones."""
_PEER_PROCESSES = 3
_WARM_UP = 20
_LENGTHS_MS = (1, 10, 100)
_WITHIN_S, _QUICK_WITHIN_S = 20.0, 8.0

Measured = Mapping[str, list[Costs] | str]
"""By what observed: one entry per process, or why there is none."""


def short_step_figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """The ratios in steps of about 0.6 ms."""
    yield from _compared(SHORT_STEP_MS, folder, is_quick)


def long_step_figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """The ratios in steps of about 5 ms."""
    yield from _compared(LONG_STEP_MS, folder, is_quick)


def within_step_figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """The time in Stepscope's functions within steps of about 1, 10 and 100 ms."""
    with on_one_thread():
        device = CpuDevice.open()
        for length_ms in _LENGTHS_MS:
            yield from _within(device, folder, length_ms, _QUICK_WITHIN_S if is_quick else _WITHIN_S)


def _compared(step_ms: float, folder: Path, is_quick: bool) -> Iterator[Figure]:
    yield from _ratios(step_ms, STEPS_MS[step_ms], _measure(step_ms, folder, is_quick))


def _measure(step_ms: float, folder: Path, is_quick: bool) -> Measured:
    """Return what each costs a step of about `step_ms`, one process of each after the other, again and
    again."""
    processes, seconds = _QUICK_PROCESSES if is_quick else _PROCESSES
    outcome: dict[str, list[Costs] | str] = {}
    with fresh_processes() as pool:
        batch = pool.submit(batch_for, step_ms).result()
    ours: dict[str, Callable[[Path], Costs]] = {
        "Stepscope": partial(recorded_costs, batch, seconds),
        "floor": partial(_floor, batch, seconds),
        "nothing": partial(_nothing, batch, seconds),
        "2 % of Python in another thread": partial(_other_thread, batch, seconds),
    }
    with fresh_processes() as pool:
        for number in range(processes):
            for name, measure in ours.items():
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    _add(outcome, name, pool.submit(measure, Path(place)).result())
            for name in NAMES if number < _PEER_PROCESSES else ():
                with tempfile.TemporaryDirectory(dir=folder) as place:
                    _add(outcome, name, peer_costs(name, batch, seconds, Path(place)))
    return outcome


def fresh_processes() -> ProcessPoolExecutor:
    """A new process for each task, one at a time."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)


def _add(outcome: dict[str, list[Costs] | str], name: str, costs: Costs | str) -> None:
    before = outcome.get(name)
    if isinstance(costs, str):
        outcome.setdefault(name, costs)
    elif isinstance(before, list):
        before.append(costs)
    else:
        outcome[name] = [costs]


def _ratios(step_ms: float, most: float, measured: Measured) -> Iterator[Figure]:
    """The figures at one length of a step. Raises ValueError where Stepscope was not measured."""
    ours = measured["Stepscope"]
    if isinstance(ours, str):
        raise ValueError(ours)
    where = f"{step_ms:g} ms step"
    yield Figure(f"{where}: bare, median", of_each(ours, "by_short", lambda turn: turn.bare.median_us), "µs")
    for name, costs in measured.items():
        if isinstance(costs, str):
            yield Figure(f"{where}: {name}", [], "×", note=costs)
            continue
        limit = most if name == "Stepscope" else None
        means = of_each(costs, "by_long", lambda turn: turn.observed.mean_us / turn.bare.mean_us)
        yield Figure(f"{where}: {name}, on average", means, "×", limit)
        medians = of_each(costs, "by_short", lambda turn: turn.observed.median_us / turn.bare.median_us)
        yield Figure(f"{where}: {name}, median", medians, "×")
        extra_us = of_each(costs, "by_long", lambda turn: turn.extra.mean_us)
        yield Figure(f"{where}: {name} adds on average", extra_us, "µs")
        cpu_us = of_each(costs, "by_long", lambda turn: turn.extra.cpu_us)
        yield Figure(f"{where}: {name}, processor time of the training thread", cpu_us, "µs")
        others_us = of_each(costs, "by_long", lambda turn: turn.extra.others_us)
        yield Figure(f"{where}: {name}, processor time of the process's other threads", others_us, "µs")


def of_each(processes: list[Costs], blocks: str, value: Callable[[Turn], float]) -> list[float]:
    """Return one value per process: the median of its turns, with `blocks` of `Costs`."""
    return [median(value(turn) for turn in getattr(costs, blocks)) for costs in processes]


def batch_for(step_ms: float) -> int:
    """Return the batch size of the mlp for steps of about this length, with one thread."""
    with on_one_thread():
        return find_batch(CpuDevice.open(), step_ms)


class _Nothing:
    """A `StepLog` that records nothing: its loop is the bare one but for the marks of the clock."""

    def step(self, model: nn.Module) -> AbstractContextManager[object] | None:
        del model
        return None

    def log(self, step: int, values: dict[str, float]) -> None:
        del step, values


def _nothing(batch: int, seconds: float, folder: Path) -> Costs:
    del folder
    return logged_costs(batch, lambda: nullcontext(_Nothing()), seconds)


def _other_thread(batch: int, seconds: float, folder: Path) -> Costs:
    del folder
    return logged_costs(batch, beside_other_thread, seconds)


def _floor(batch: int, seconds: float, folder: Path) -> Costs:
    return logged_costs(batch, lambda: Floor(folder), seconds)


def recorded_costs(batch: int, seconds: float, folder: Path) -> Costs:
    """Return the costs of recording the mlp in this process."""
    with on_one_thread():
        device = CpuDevice.open()
        workload = sized_workload(device, batch)
        costs = Costs(
            *(recorded_turns(workload, device, folder, block_s, seconds) for block_s in (0.0, LONG_S))
        )
        workload.close()
    return costs


def recorded_turns(
    workload: Workload, device: CpuDevice, folder: Path, block_s: float, seconds: float
) -> list[Turn]:
    """Take the workload's steps for so many seconds in blocks, bare and recorded in turns."""
    block, pairs = plan(workload, block_s, seconds)
    steps = block * pairs
    workload.settings = change(workload.settings, {"measure_overhead": False})  # Each step is to be recorded.
    between: list[Block] = []
    cpu: list[Cpu] = []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        with Recording(workload, device, Path(place)) as recording:

            def take_bare_block() -> None:
                cpu.append(Cpu.now())
                with recording.gate.closed():
                    between.append(bare(workload, block, DISCARDED))
                cpu.append(Cpu.now())

            recording.train(steps, actions=[_EveryFew(block, take_bare_block)])
        assert not recording.errors, recording.errors
        with LogReader(recording.log) as log:
            rows = log.last_steps(steps)
    assert len(rows) == steps
    recorded: dict[int, list[int]] = {}
    for row in rows:
        if row.step % block >= DISCARDED:
            recorded.setdefault(row.step // block, []).append(row.step_ns)
    observed = [
        block_of(recorded[number], cpu[2 * number].since(cpu[2 * number - 1], block))
        for number in range(1, len(between))
    ]
    return turns(observed, between)


class _EveryFew(StepAction):
    """Acts before every so many steps; the time that takes belongs to no step."""

    def __init__(self, steps: int, act: Callable[[], None]) -> None:
        self._steps = steps
        self._act = act
        self._due = steps

    @property
    def due(self) -> int:
        return self._due

    def before_step(self, boundary: Boundary) -> None:
        if boundary.step >= self._due:
            self._due = boundary.step + self._steps
            self._act()
            boundary.restart()


class _Within:
    """Adds up what the loop spends in our functions, step by step; a look at the clock costs 0.2 µs of it."""

    def __init__(self) -> None:
        self.spent_ns: list[int] = []
        self._now_ns = 0

    def wrap(self, steps: Steps) -> None:
        """Time everything that the loop calls of `steps`; a step begins with asking whether to go on."""
        proceed: Callable[[int], bool] = self._timed(steps.proceed)

        def next_step(step: int) -> bool:
            self.spent_ns.append(self._now_ns)
            self._now_ns = 0
            return proceed(step)

        timer: Any = steps.timer
        lap_of, timer_class = timer.__dict__.pop("lap"), type(timer)
        timer.__class__ = type("TimedTimer", (timer_class,), {"lap": self._lap(lap_of)})
        steps.proceed = next_step
        timer.losses.take = self._timed(timer.losses.take)
        timer.restart()
        steps.step_ended = self._timed(steps.step_ended)

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
            outcome = function(*values)
            self._now_ns += clock_ns() - began_ns
            return outcome

        return timed


def _within(device: CpuDevice, folder: Path, length_ms: int, seconds: float) -> list[Figure]:
    """Return what the training thread spends in our functions, in steps of about so long."""
    batch = 8
    while True:
        workload = sized_workload(device, batch)
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

"""The overhead per step of a person's own loop on the CPU, beside that of the catalog's loop.

Blocks of steps are bare and under watch in turns, as with the catalog's loop (`tests.bench.cost`): short ones
for the median, blocks of one second for the mean. The first steps of a block do not count, because the
interpreter optimizes its calls anew after torch's entry points were exchanged. Each process has one run, as
under `stepscope run` (zero lines) or with the two lines and `run.log`, and gives one value. In bare blocks
torch's entry points are its own, and what watches the run is paused. The floor takes turns with bare blocks
in the same way.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset

import stepscope
from harness.attach.hooks import Hooks
from harness.settings.spec import change
from tests.bench.blocks import (
    LONG_S,
    SETTLE_S,
    WARM_UP_STEPS,
    Block,
    Costs,
    Cpu,
    Turn,
    block_of,
    on_one_thread,
    turns,
)
from tests.bench.cost import batch_for, fresh_processes, of_each, recorded_costs
from tests.bench.figures import Figure
from tests.bench.floor import Floor
from tests.bench.script_floor import ScriptFloor

_PROCESSES, _QUICK_PROCESSES = (8, 10.0), (3, 4.0)
"""How many for each form, and for how many seconds each process takes short blocks, and then long ones."""
_SHORT_STEPS, _LEFT_OUT = 200, 60
_BATCH, _WIDTH, _SAMPLES = 64, 256, 38_400
MOST_US = 15.0


class _Endless(Sampler[int]):
    """The indices of all samples, again and again."""

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(_SAMPLES))


class _Loop:
    """A multilayer perceptron on samples of noise, with a DataLoader or batches of its own, a loss and
    Adam."""

    def __init__(self, *, has_loader: bool = True) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, 10))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        data = TensorDataset(torch.randn(_SAMPLES, _WIDTH), torch.randint(0, 10, (_SAMPLES,)))
        self.loader: Iterable[Any] = DataLoader(data, batch_size=_BATCH, sampler=_Endless())
        if not has_loader:
            self.loader = (data[torch.randint(_SAMPLES, (_BATCH,))] for _ in itertools.count())

    def take(self, batches: Iterator[Any], steps: int, log: Callable[..., None] | None = None) -> Block:
        """Take so many steps, more than `_LEFT_OUT`."""
        began = Cpu.now()
        ends_ns = [time.perf_counter_ns()]
        for step in range(steps):
            if step == _LEFT_OUT:
                began = Cpu.now()
            inputs, labels = next(batches)
            loss = nn.functional.cross_entropy(self.model(inputs), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if log is not None:
                log(loss=loss)
            ends_ns.append(time.perf_counter_ns())
        cpu = Cpu.now().since(began, steps - _LEFT_OUT)
        return block_of([end - start for start, end in itertools.pairwise(ends_ns)][_LEFT_OUT:], cpu)


class _Followed(Protocol):
    """An observer of a loop's steps that can be paused."""

    def left(self) -> AbstractContextManager[None]:
        """Return a context in which torch is as without it, and nothing is at work."""
        ...


class _Watched:
    """A loop under watch, which can be left for a while."""

    def __init__(self, loop: _Loop, run: stepscope.Run) -> None:
        self._loop = loop
        session = None if run._attachment is None else run._attachment.session
        assert session is not None
        assert session.watch is not None
        self._session = session
        training = session.remarks.observation.training
        # Each step is to be recorded.
        training.settings = change(training.settings, {"measure_overhead": False})
        self._may_run = threading.Event()
        self._may_run.set()
        context: Any = session.watch.context
        context.guard.run = self._in_time(context.guard.run)  # The jobs of the sampler.
        context.journal._gather = self._in_time(context.journal._gather)  # The writer's rows.

    def _in_time(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*arguments: Any) -> Any:
            self._may_run.wait()
            return work(*arguments)

        return wait

    @contextmanager
    def left(self) -> Iterator[None]:
        """Until the end of the context, torch is as without Stepscope, and nothing watches."""
        session = self._session
        self._may_run.clear()
        time.sleep(SETTLE_S)
        session._hooks.close()
        try:
            yield
        finally:
            session._hooks = hooks = Hooks(session, session._entries)
            hooks.follow([self._loop.model])
            self._may_run.set()


def figures(folder: Path, is_quick: bool) -> Iterator[Figure]:
    """The overhead over the bare loop, and the ratios to it."""
    processes, seconds = _QUICK_PROCESSES if is_quick else _PROCESSES
    measured: dict[str, list[Costs]] = {form: [] for form in (*_FORMS, _FLOOR)}
    own: list[Costs] = []
    with fresh_processes() as pool:
        for number in range(processes):
            for form, costs in measured.items():
                costs.append(pool.submit(_costs, form, folder / f"{number} {form}", seconds).result())
            bare_us = median(turn.bare.median_us for turn in costs[-1].by_short)
            place = folder / f"{number} own"
            place.mkdir()
            batch = pool.submit(batch_for, bare_us / 1e3).result()
            own.append(pool.submit(recorded_costs, batch, seconds, place).result())
    first = next(iter(measured.values()))
    yield Figure("bare loop, median step", of_each(first, "by_short", lambda turn: turn.bare.median_us), "µs")
    for form, costs in measured.items():
        yield from _compared(form, costs, None if form == _FLOOR else MOST_US)
    yield from _compared("the catalog's loop", own, None)


def _compared(form: str, costs: list[Costs], most_us: float | None) -> Iterator[Figure]:
    """The figures of what is added to bare blocks."""

    def figure(what: str, blocks: str, value: Callable[[Turn], float], limit: float | None = None) -> Figure:
        return Figure(f"{form}: {what}", of_each(costs, blocks, value), "µs", limit)

    yield figure("added to the median step", "by_short", lambda turn: turn.extra.median_us, most_us)
    ratios = of_each(costs, "by_short", lambda turn: turn.observed.median_us / turn.bare.median_us)
    yield Figure(f"{form}: median step to the bare one", ratios, "×")
    yield figure("added to the mean step", "by_long", lambda turn: turn.extra.mean_us)
    yield figure("added processor time of the thread", "by_long", lambda turn: turn.extra.cpu_us)
    yield figure("processor time of the other threads", "by_long", lambda turn: turn.extra.others_us)


def _costs(form: str, home: Path, seconds: float) -> Costs:
    with on_one_thread():
        loop = _Loop(has_loader=form != _OWN_BATCHES)
        if form == _FLOOR:
            home.mkdir()
            with Floor(home) as floor:
                followed = ScriptFloor(loop.model, floor)
                take = partial(loop.take, followed.batches(iter(loop.loader)))
                return _costs_of(loop, followed, take, seconds)
        with stepscope.watch(loop.model, loop.optimizer, home=home) as run:
            return _costs_of(loop, _Watched(loop, run), _FORMS[form](loop, run), seconds)


def _costs_of(loop: _Loop, followed: _Followed, take: Callable[[int], Block], seconds: float) -> Costs:
    with followed.left():
        bare = partial(loop.take, iter(loop.loader))
        bare(WARM_UP_STEPS)
        step_us = bare(WARM_UP_STEPS).median_us
    take(WARM_UP_STEPS)
    return Costs(*(_turns(followed, bare, take, step_us, block_s, seconds) for block_s in (0.0, LONG_S)))


def _turns(
    followed: _Followed,
    bare: Callable[[int], Block],
    take: Callable[[int], Block],
    step_us: float,
    block_s: float,
    seconds: float,
) -> list[Turn]:
    steps = max(_SHORT_STEPS, int(block_s * 1e6 / step_us))
    pairs = max(3, int(seconds * 1e6 / step_us / steps / 2))
    between, observed = [], []
    for _ in range(pairs):
        with followed.left():
            between.append(bare(steps))
        observed.append(take(steps))
    with followed.left():
        between.append(bare(steps))
    return turns(observed, between)


def _with_zero_lines(loop: _Loop, run: stepscope.Run) -> Callable[[int], Block]:
    del run
    return partial(loop.take, iter(loop.loader))


def _with_two_lines(loop: _Loop, run: stepscope.Run) -> Callable[[int], Block]:
    return partial(loop.take, iter(run.steps(loop.loader)), log=run.log)


_FLOOR, _OWN_BATCHES = "floor", "zero lines without a loader"
_FORMS = {
    "zero lines": _with_zero_lines,
    _OWN_BATCHES: _with_zero_lines,
    "two lines and run.log": _with_two_lines,
}

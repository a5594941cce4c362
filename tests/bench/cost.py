"""What recording costs training: the same steps bare and recorded, in interleaved blocks.

Bare is a plain loop over the same workload, recorded is the real loop with everything a run does beside it.
One of torch's threads, so that a core is left for the writer. What the median step pays is told by short
blocks of both in one process, each recorded one compared with the bare ones before and after it. The mean,
which has the rare waits in it (for the interpreter's lock, for a look at the memory), is told by long blocks;
no thread of ours is alive while those run bare.

Beside steps of 10 and 100 ms a difference of microseconds cannot be seen. There, what the training thread
spends in our functions is timed within the step, with the caches as the step left them; the marks of the
clock between two phases, which the first way has in it, are left out.
"""

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch

from harness.analysis.timing.own_cost import interval
from harness.device.cpu import CpuDevice
from harness.store.reader import LogReader
from harness.train.workload import Workload
from tests.bench.figures import Figure
from tests.bench.rig import Parts, Recording, cpu_workload

MOST_EXTRA_US = 30.0
"""10 each for recording, for watching memory and for telling where time goes."""
MOST_SHARE_PCT = 1.0
"""Of the time of a step of two milliseconds, and of one long enough to bear a reading of the memory."""
_PAIRS, _QUICK_PAIRS = 16, 8
_BLOCK_S, _QUICK_BLOCK_S = 1.0, 0.5
_ALTERNATING_S, _QUICK_ALTERNATING_S = 60.0, 30.0
_BLOCK_STEPS, _DISCARDED = 40, 5
_LEAST_STEPS = 400
_LONGER_BATCH = 512
"""Makes a step of the mlp take some two milliseconds."""
_WARM_UP = 20
_LENGTHS_MS = (1, 10, 100)
_WITHIN_S, _QUICK_WITHIN_S = 20.0, 8.0


class Block(NamedTuple):
    """Microseconds a step: of the median one, on average, and of the training thread's processor time."""

    median_us: float
    mean_us: float
    cpu_us: float


class _Pair(NamedTuple):
    bare: Block
    recorded: Block


def figures(folder: Path, is_quick: bool) -> list[Figure]:
    """The cost on a short step (the mlp's own batch), on one of some two milliseconds, and within steps of
    about 1, 10 and 100 ms."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # As a training process does, which would else look for garbage in what importing torch made.
    try:
        device = CpuDevice.open()
        short = _pairs(cpu_workload(device, model="mlp"), device, folder, is_quick)
        found = list(_told("short step", short))
        longer = _pairs(cpu_workload(device, model="mlp", batch_size=_LONGER_BATCH), device, folder, is_quick)
        found += _told("longer step", longer)
        shares_pct = [100 * (pair.recorded.mean_us / pair.bare.mean_us - 1) for pair in longer]
        found.append(
            Figure("longer step: recording adds, of the time on average", shares_pct, "%", MOST_SHARE_PCT)
        )
        alternating_s = _QUICK_ALTERNATING_S if is_quick else _ALTERNATING_S
        found += _alternating(cpu_workload(device, model="mlp"), device, folder, alternating_s)
        for length_ms in _LENGTHS_MS:
            found += _within(device, folder, length_ms, _QUICK_WITHIN_S if is_quick else _WITHIN_S)
    finally:
        torch.set_num_threads(threads)
    return found


def _told(name: str, pairs: list[_Pair]) -> Iterator[Figure]:
    yield Figure(f"{name}: bare, median", [pair.bare.median_us for pair in pairs], "µs")
    yield Figure(
        f"{name}: recording adds on average", [p.recorded.mean_us - p.bare.mean_us for p in pairs], "µs"
    )
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


def _bare(workload: Workload, steps: int, discarded: int = 0) -> Block:
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
    cpu_ns = time.thread_time_ns() - cpu_ns
    return _block([end - start for start, end in pairwise(ends_ns)][discarded:], cpu_ns)


def _recorded(workload: Workload, device: CpuDevice, folder: Path, steps: int) -> Block:
    with tempfile.TemporaryDirectory(dir=folder) as place:
        with Recording(workload, device, Path(place)) as recording:
            cpu_ns = time.thread_time_ns()
            recording.train(steps)
            cpu_ns = time.thread_time_ns() - cpu_ns
        assert not recording.errors, recording.errors
        with LogReader(recording.log) as log:
            rows = log.last_steps(steps)
            unobserved = sum(b.last_step - b.first_step + 1 for b in log.own_cost.unobserved(1, steps))
    assert len(rows) + unobserved == steps
    return _block([row.step_ns for row in rows], cpu_ns)


def _block(steps_ns: list[int], cpu_ns: int) -> Block:
    return Block(
        statistics.median(steps_ns) / 1e3, statistics.fmean(steps_ns) / 1e3, cpu_ns / len(steps_ns) / 1e3
    )


def _alternating(workload: Workload, device: CpuDevice, folder: Path, seconds: float) -> list[Figure]:
    """What recording adds to the median step, by short blocks of bare and recorded ones in turns."""
    steps = int(seconds * 1e6 / _bare(workload, _LEAST_STEPS).mean_us / 2)
    bare: list[float] = []

    def in_turns(parts: Parts) -> None:
        unobserved = parts.unobserved

        def before_step(step: int) -> None:
            bare.append(_bare(workload, _BLOCK_STEPS, _DISCARDED).median_us)
            parts.timer.restart()
            unobserved.due = step + _BLOCK_STEPS

        unobserved.before_step = before_step  # type: ignore[method-assign]
        unobserved.due = _BLOCK_STEPS

    with tempfile.TemporaryDirectory(dir=folder) as place:
        with Recording(workload, device, Path(place)) as recording:
            recording.train(steps, in_turns)
        assert not recording.errors, recording.errors
        with LogReader(recording.log) as log:
            rows = log.last_steps(steps)
    workload.close()
    blocks: dict[int, list[int]] = {}
    for row in rows:
        if row.step % _BLOCK_STEPS >= _DISCARDED:
            blocks.setdefault(row.step // _BLOCK_STEPS, []).append(row.step_ns)
    extra_us = [
        statistics.median(blocks[number]) / 1e3 - (before + after) / 2
        for number, (before, after) in enumerate(pairwise(bare), 1)
        if len(blocks.get(number, ())) == _BLOCK_STEPS - _DISCARDED
    ]
    low, high = interval(sorted(extra_us))
    return [
        Figure("short step: recording adds to the median", extra_us, "µs", MOST_EXTRA_US),
        Figure("short step: the same, ends of the median's 95 % interval", [low, high], "µs"),
    ]


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
        bare_us = _bare(workload, _WARM_UP).median_us
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
            [100 * statistics.fmean(spent_us) / bare_us],
            "%",
            MOST_SHARE_PCT,
        ),
    ]

"""Steps of one workload in blocks, bare and observed in turns.

Microseconds of one machine say nothing about another, so each observed block is compared with the bare ones
right before and after it, and what comes out is a ratio.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple, Protocol

import torch
from torch import nn

from harness.device.cpu.device import CpuDevice
from harness.train.workload import Workload
from tests.bench.rig import cpu_workload

SHORT_STEPS, LONG_S = 40, 1.0
"""Of the blocks: short ones for the median, long ones for the mean, in which everything that is done now and
then comes about as often as in a run."""
DISCARDED = 5
WARM_UP_STEPS = 400
SETTLE_S = 0.05
"""Between an observed block and a bare one: what is still being written is over by then."""
_LEAST_BATCH, _MOST_BATCH = 2, 16_384
_CALIBRATION_STEPS = 200


class Block(NamedTuple):
    """Microseconds per step: of the median one, on average, and of the processor time of the training thread
    and of all others of the process."""

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
    """An observed block, and what a step of the bare ones before and after it takes."""

    observed: Block
    bare: Block

    @property
    def extra(self) -> Block:
        """Return what observing adds."""
        return Block(*(observed - bare for observed, bare in zip(*self, strict=True)))


class Costs(NamedTuple):
    """The turns of one process, with short blocks and with long ones."""

    by_short: list[Turn]
    by_long: list[Turn]


class StepLog(Protocol):
    """A recorder of steps in the ordinary way: the library's own calls, at their defaults."""

    def step(self, model: nn.Module) -> AbstractContextManager[object] | None:
        """Return what is to be entered around the step; None where there is nothing."""
        ...

    def log(self, step: int, values: dict[str, float]) -> None:
        """Record the values of a step."""
        ...


@contextmanager
def on_one_thread() -> Iterator[None]:
    """One of torch's threads, so that a core is left for what observes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # As a training process does, which would else look for garbage in what importing torch made.
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def sized_workload(device: CpuDevice, batch: int) -> Workload:
    """The mlp with this batch size."""
    return cpu_workload(device, model="mlp", data="synthetic", batch_size=batch)


def find_batch(device: CpuDevice, step_ms: float) -> int:
    """The batch size with which a step of the mlp takes about `step_ms` on this machine; the smallest one
    where even that takes longer."""

    def length_ms(batch: int) -> float:
        workload = sized_workload(device, batch)
        bare(workload, _CALIBRATION_STEPS // 4)
        result = bare(workload, _CALIBRATION_STEPS).median_us / 1e3
        workload.close()
        return result

    low, low_ms = _LEAST_BATCH, length_ms(_LEAST_BATCH)
    while low_ms < step_ms and low < _MOST_BATCH:
        high, high_ms = 2 * low, length_ms(2 * low)
        if high_ms >= step_ms:
            share = (step_ms - low_ms) / (high_ms - low_ms)
            return low + round(share * (high - low))
        low, low_ms = high, high_ms
    return low


def bare(workload: Workload, steps: int, discarded: int = 0) -> Block:
    """So many steps of a plain loop; the first few are taken and not counted."""
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
    return block_of([end - start for start, end in pairwise(ends_ns)][discarded:], cpu)


def block_of(steps_ns: list[int], cpu: Cpu) -> Block:
    """The block of steps that took so long."""
    return Block(median(steps_ns) / 1e3, fmean(steps_ns) / 1e3, cpu.thread_ns / 1e3, cpu.others_ns / 1e3)


def turns(observed: list[Block], between: list[Block]) -> list[Turn]:
    """Each observed block beside the mean of the bare ones `between` which it lies."""
    return [
        Turn(block, Block(*(fmean(pair) for pair in zip(before, after, strict=True))))
        for block, (before, after) in zip(observed, pairwise(between), strict=True)
    ]


def plan(workload: Workload, block_s: float, seconds: float) -> tuple[int, int]:
    """Return how many steps a block has (`SHORT_STEPS` or what takes `block_s`, whichever is more), and how
    many pairs of blocks take so many seconds."""
    bare(workload, WARM_UP_STEPS)
    step_us = bare(workload, WARM_UP_STEPS).median_us
    steps = max(SHORT_STEPS, int(block_s * 1e6 / step_us))
    return steps, max(3, int(seconds * 1e6 / step_us / steps / 2))


def logged_turns(workload: Workload, log: StepLog, block_s: float, seconds: float) -> list[Turn]:
    """Take the workload's steps for so many seconds, bare and with `log` in turns."""
    steps, pairs = plan(workload, block_s, seconds)
    between, observed = [bare(workload, steps, DISCARDED)], []
    for number in range(pairs):
        observed.append(_logged(workload, log, number * steps, steps))
        time.sleep(SETTLE_S)
        between.append(bare(workload, steps, DISCARDED))
    return turns(observed, between)


def logged_costs(batch: int, opening: Callable[[], AbstractContextManager[StepLog]], seconds: float) -> Costs:
    """The costs of a log in this process: short blocks for so many seconds, and then long ones."""
    with on_one_thread():
        workload = sized_workload(CpuDevice.open(), batch)
        with opening() as log:
            costs = Costs(*(logged_turns(workload, log, block_s, seconds) for block_s in (0.0, LONG_S)))
        workload.close()
    return costs


def _logged(workload: Workload, log: StepLog, first: int, steps: int) -> Block:
    clock_ns = time.perf_counter_ns
    began = Cpu.now()
    ends_ns = [clock_ns()]
    for step in range(first, first + steps):
        around = log.step(workload.model)
        if around is None:
            log.log(step, _timed_step(workload, ends_ns[-1]))
        else:
            with around:
                values = _timed_step(workload, ends_ns[-1])
            log.log(step, values)
        ends_ns.append(clock_ns())
    cpu = Cpu.now().since(began, steps)
    return block_of([end - start for start, end in pairwise(ends_ns)][DISCARDED:], cpu)


def _timed_step(workload: Workload, began_ns: int) -> dict[str, float]:
    """Take a step; its twelve values, as a person would take them down."""
    clock_ns = time.perf_counter_ns
    batch = workload.next_batch()
    arrived_ns = clock_ns()
    inputs, targets = workload.to_device(batch)
    copied_ns = clock_ns()
    loss = workload.forward(inputs, targets)
    forward_ns = clock_ns()
    workload.backward(loss)
    backward_ns = clock_ns()
    workload.update()
    updated_ns = clock_ns()
    step_ms = (updated_ns - began_ns) / 1e6
    return {
        "step_ms": step_ms,
        "data_wait_ms": (arrived_ns - began_ns) / 1e6,
        "h2d_ms": (copied_ns - arrived_ns) / 1e6,
        "forward_ms": (forward_ns - copied_ns) / 1e6,
        "backward_ms": (backward_ns - forward_ns) / 1e6,
        "optimizer_ms": (updated_ns - backward_ns) / 1e6,
        "loss": float(workload.loss),
        "samples": float(workload.samples_per_step),
        "samples_per_s": workload.samples_per_step / step_ms * 1e3,
        "learning_rate": workload.settings.learning_rate,
        "batch_size": float(workload.settings.batch_size),
        "elapsed_s": updated_ns / 1e9,
    }

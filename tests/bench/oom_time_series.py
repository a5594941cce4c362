"""Simulated runs on a GPU under a cap: a training step's blocks through the caching allocator's policy, and a
leak beside them, until the cap is reached."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

import numpy as np

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Limits
from harness.analysis.leak.trend import Floats
from harness.predict.allocator import Block, CachingAllocator, CapError
from harness.records.memory import LeakRow, LeakVerdict
from harness.records.run import StepRow
from tests.leak_factories import a_row

MIB = 2**20
_READ_EVERY = 8
"""Steps that share a reading; in those between, memory columns are empty, as after a change."""
_JUDGE_EVERY = 64
_STEP_NS = 6_000_000
_HOST_FREE_BYTES = 2**40
_MOST_STEPS = 30_000


class Lengths(StrEnum):
    """Sizes of the transient blocks of a step, from step to step."""

    ALIKE = "alike"
    SCALED = "scaled"
    """All of them by one factor, as batches of one length each."""
    EACH = "each"
    """Each by a factor of its own, as branches of a network do."""
    SORTED = "sorted"
    """Epoch by epoch from short to long."""
    LOG_NORMAL = "log-normal"
    BURSTY = "bursty"
    CURRICULUM = "curriculum"
    """Longer with every step until a plateau."""


class SimulatedRun(NamedTuple):
    """One run, from its seed: a model's lasting blocks, a step's passing ones, and a leak.

    `pieces`: the blocks that leak in one step, of sizes drawn anew in each. `is_shuffled`: passing blocks are
    freed in any order instead of the last one first. `evaluates_every` so many steps one takes half as much
    again, in blocks of other sizes; 0: never. `in_hand_bytes` has the longest batch, which stays until the
    next is there. `collected_bytes` are kept of each step and dropped after an epoch of `epoch_steps`.
    """

    cap_bytes: int
    lasting: list[int]
    passing: list[int]
    leaked_bytes: int
    pieces: int
    lengths: Lengths
    is_shuffled: bool
    evaluates_every: int
    chance: np.random.Generator
    in_hand_bytes: int = 0
    collected_bytes: int = 0
    epoch_steps: int = 250


class Statement(NamedTuple):
    """Verdict of the detector at `step`, and the true number of remaining steps."""

    step: int
    stated: int
    left: int

    @property
    def factor(self) -> float:
        """By how much the two differ, as a factor of 1 and more."""
        ratio = max(self.stated, 1) / max(self.left, 1)
        return max(ratio, 1 / ratio)


def simulated_run(seed: int, number: int) -> SimulatedRun:
    """The run of that number: 8 to 31 blocks of 4 KiB to 64 MiB of each kind, a leak of 8 KiB to 4 MiB per
    step, and a cap that leaves room for 800 to 6,000 steps of it."""
    chance = np.random.default_rng([seed, number])
    sizes = [
        [int(size) for size in np.exp(chance.uniform(np.log(4 * 2**10), np.log(64 * MIB), count))]
        for count in chance.integers(8, 32, 2)
    ]
    leaked = int(np.exp(chance.uniform(np.log(8 * 2**10), np.log(4 * MIB))))
    steps = float(np.exp(chance.uniform(np.log(800), np.log(6_000))))
    return SimulatedRun(
        cap_bytes=int((sum(sizes[0]) + sum(sizes[1])) * chance.uniform(1.15, 1.5) + leaked * steps),
        lasting=sizes[0],
        passing=sizes[1],
        leaked_bytes=leaked,
        pieces=int(chance.choice([1, 1, 3, 8])),
        lengths=Lengths(str(chance.choice([*Lengths]))),
        is_shuffled=bool(chance.integers(2)),
        evaluates_every=int(chance.choice([0, 0, 37, 200])),
        chance=chance,
    )


def patterned_run(seed: int, number: int) -> SimulatedRun:
    """The run of that number without a cap: all patterns of lengths in turn, batches of up to 8 MiB, epochs
    of 40 to 1,000 steps, and in every third run metrics that are dropped after each; as many without a leak
    as with one."""
    run, chance = simulated_run(seed, number), np.random.default_rng([seed, number, 1])
    kinds = list(Lengths)
    return run._replace(
        cap_bytes=2**50,
        leaked_bytes=run.leaked_bytes * (number // len(kinds) % 2),
        lengths=kinds[number % len(kinds)],
        in_hand_bytes=int(np.exp(chance.uniform(np.log(4 * 2**10), np.log(8 * MIB)))),
        collected_bytes=int(chance.choice([0, 0, 1]) * np.exp(chance.uniform(np.log(2**9), np.log(2**18)))),
        epoch_steps=int(np.exp(chance.uniform(np.log(40), np.log(1_000)))),
    )


def calls(run: SimulatedRun, steps: int) -> list[LeakRow]:
    """Every LEAK that the detector said of the first so many steps of a run."""
    detector, message = LeakDetector(on_cpu=False), list[LeakRow]()
    for row in islice(_rows(run), steps):
        detector.add_steps([row])
        if row.step % _JUDGE_EVERY == 0:
            message += [one for one in detector.judge(row.t_ns) if one.verdict == LeakVerdict.LEAK]
    return message


def statements(run: SimulatedRun) -> list[Statement]:
    """Every LEAK with a time that the detector stated until the cap was reached; empty without one."""
    detector, stated, died_at = LeakDetector(on_cpu=False), list[LeakRow](), None
    limits = Limits(run.cap_bytes, _HOST_FREE_BYTES, None)
    for row in _rows(run):
        died_at = row.step
        detector.add_steps([row], limits)
        if row.step % _JUDGE_EVERY == 0:
            rows = detector.judge(row.t_ns, limits)
            stated += [one for one in rows if one.steps_to_oom is not None][:1]
    if died_at is None or died_at >= _MOST_STEPS:
        return []
    return against_the_truth(stated, died_at + 1)


def against_the_truth(rows: Iterable[LeakRow], died_at: int) -> list[Statement]:
    """The statements in `rows` about a run that ran out of memory in step `died_at`."""
    return [
        Statement(row.step, row.steps_to_oom, died_at - row.step)
        for row in rows
        if row.steps_to_oom is not None
    ]


def _rows(run: SimulatedRun) -> Iterator[StepRow]:
    """The rows of the run's steps until the allocator fails."""
    allocator = CachingAllocator(run.cap_bytes)
    collected, in_hand = list[Block](), list[Block]()
    try:
        for size in run.lasting:
            allocator.allocate(size)
        for step in range(1, _MOST_STEPS + 1):
            if step % _READ_EVERY == 1:
                allocator.peak_allocated_bytes = allocator.allocated_bytes
            scales = _scales(run, step)
            if run.in_hand_bytes:
                in_hand.append(allocator.allocate(max(512, int(run.in_hand_bytes * scales[0]))))
                _free(allocator, in_hand[:-1])
                del in_hand[:-1]
            _take_step(run, allocator, scales)
            if run.collected_bytes:
                collected.append(allocator.allocate(run.collected_bytes))
            if step % run.epoch_steps == 0:
                _free(allocator, collected)
                collected.clear()
            yield _row(step, allocator if step % _READ_EVERY == 0 else None)
    except CapError:
        return


def _free(allocator: CachingAllocator, blocks: Iterable[Block]) -> None:
    for block in blocks:
        allocator.free(block)


def _take_step(run: SimulatedRun, allocator: CachingAllocator, scales: Floats) -> None:
    """Allocate what the step needs, leak somewhere in it, and free the rest."""
    chance, blocks = run.chance, list[Block]()
    leaks_at = chance.integers(len(scales), size=run.pieces)
    shares = chance.dirichlet(np.ones(run.pieces)) if run.pieces > 1 else np.ones(1)
    for at, (size, scale) in enumerate(zip(run.passing * 2, scales, strict=False)):
        blocks.append(allocator.allocate(max(512, int(size * scale))))
        if run.leaked_bytes:
            for share in shares[leaks_at == at]:
                allocator.allocate(max(512, int(run.leaked_bytes * share)))
    order = chance.permutation(len(blocks)) if run.is_shuffled else range(len(blocks) - 1, -1, -1)
    _free(allocator, [blocks[at] for at in order])


def _scales(run: SimulatedRun, step: int) -> Floats:
    """By how much the step's passing blocks are smaller than the largest batch's."""
    chance, count = run.chance, len(run.passing)
    match run.lengths:
        case Lengths.ALIKE:
            scales = np.ones(count)
        case Lengths.SCALED:
            scales = np.full(count, chance.uniform(0.3, 1.0))
        case Lengths.EACH:
            scales = chance.uniform(0.3, 1.0, count)
        case Lengths.SORTED:
            scales = np.full(count, 0.3 + 0.7 * (step % run.epoch_steps) / run.epoch_steps)
        case Lengths.LOG_NORMAL:
            scales = np.full(count, min(chance.lognormal(np.log(0.25), 0.6), 1.0))
        case Lengths.BURSTY:
            scales = np.full(count, 1.0 if chance.uniform() < 0.02 else chance.uniform(0.1, 0.2))
        case Lengths.CURRICULUM:
            scales = np.full(count, min(1.0, 0.1 + 0.9 * step / (4 * run.epoch_steps)))
    if run.evaluates_every and step % run.evaluates_every == 0:
        scales = np.concatenate([scales, 0.5 * chance.uniform(0.5, 1.0, count)])
    return scales


def _row(step: int, allocator: CachingAllocator | None) -> StepRow:
    row = a_row(step)._replace(t_ns=step * _STEP_NS, step_ns=_STEP_NS)
    if allocator is None:
        return row._replace(
            allocated_bytes=None, peak_allocated_bytes=None, reserved_bytes=None, rss_bytes=None
        )
    return row._replace(
        allocated_bytes=allocator.allocated_bytes,
        peak_allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.reserved_bytes,
        active_bytes=allocator.allocated_bytes,
        inactive_split_bytes=allocator.inactive_split_bytes,
    )

"""The blocks of a measurement under way: their arms in order, and how long each lasts."""

import random
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from harness.records.measurement import Arm, MeasurementBlockRow, MeasurementRow
from harness.watch.boundary import TRANSITION_STEPS

# A block lasts at least this long: the mean of fewer steps varies more than most settings are worth.
BLOCK_STEPS = 30
BLOCK_NS = 500_000_000
# After a switch these steps, and this time, do not count: rebuilt loaders, the allocator, caches.
DISCARDED_STEPS = TRANSITION_STEPS
DISCARDED_NS = 100_000_000
# A block has so many parts at most, each of `BLOCK_STEPS` at least: with five, intervals of a cnn and an mlp
# on a busy machine were 0.4 times as wide as with one (docs/measured-effect.md).
MOST_PARTS = 5


@dataclass
class BlockUnderWay:
    """The block under way, or a part of it; `first_step` is None during the transition."""

    arm: Arm
    switch_step: int
    switch_ns: int
    # Changes when something cuts in.
    mark: tuple[int, int]
    first_step: int | None = None
    began_ns: int = 0
    began_energy_j: float | None = None


@dataclass
class MeasurementUnderWay:
    """A measurement in progress. Pairs count from 0, and so do the parts of both blocks of a pair with
    `position`; -1 is the block of arm B that warms up and is not recorded. `recorded` are those of the pair
    under way."""

    row: MeasurementRow
    values: dict[Arm, dict[str, Any]]
    orders: list[tuple[Arm, Arm]]
    arm: Arm = Arm.A
    settings: object = None
    pair: int = 0
    position: int = -1
    parts: int = 1
    repeated: int = 0
    judge_deadline_ns: int = 0
    block: BlockUnderWay | None = None
    recorded: list[MeasurementBlockRow] = field(default_factory=list)

    @property
    def next_arm(self) -> Arm:
        """The arm at `position`: within a pair AB, BA, AB, …, or the other way around."""
        if self.position < 0:
            return Arm.B
        turn, place = divmod(self.position, len(Arm))
        return self.orders[self.pair][place if turn % 2 == 0 else 1 - place]

    def least_ns(self, duration_ns: int) -> int:
        """The share of one part in `duration_ns` of a block."""
        return duration_ns // (self.parts if self.position >= 0 else 1)


def balanced_orders(pairs: int, seed: str) -> list[tuple[Arm, Arm]]:
    """Return the orders of so many pairs: half AB, half BA, shuffled by a generator with this seed."""
    rng = random.Random(seed)
    first = [(Arm.A, Arm.B), (Arm.B, Arm.A)]
    rng.shuffle(first)
    orders = list(chain.from_iterable([first] * (pairs // 2 + 1)))[:pairs]
    rng.shuffle(orders)
    return orders

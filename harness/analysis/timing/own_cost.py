"""What observing a step costs, from blocks of steps that nobody observed and the observed ones around them.

A block is compared with the steps right before and right after it, so that what drifts slowly (clocks, heat,
other people's load) cancels. The differences of all blocks give a median, and an interval by order
statistics: whatever their distribution, the median lies between the k-th smallest and the k-th largest of n
differences with a probability that the binomial distribution tells (David and Nagaraja, Order Statistics,
2003, section 7.1).
"""

import statistics
from collections.abc import Sequence
from math import comb
from typing import NamedTuple

from harness import words

CONFIDENCE = 0.95
# Differences from which on there is such an interval: their least and greatest hold 96.9 %.
LEAST = 6


# Steps are left alone when a block of them would last longer: so long the page would show nothing new, and
# what observing costs cannot be seen beside them.
LONGEST_NS = 5_000_000_000


class Plan(NamedTuple):
    """How steps are compared."""

    steps: int
    """Left unobserved in a row; as many observed ones are taken on either side."""
    discarded: int
    """Of them, and of the observed ones after them, the first: caches and queues settle."""
    by_block: bool
    """Compare how long whole blocks took, a step on average, and not the median of their steps."""

    @property
    def apart(self) -> int:
        """From the first step of one block to that of the next, and to the first of all: less than 2 % go
        unobserved. 1,013 or 2,013 steps, so that blocks do not fall into step with what happens every 10 or
        64 steps."""
        return 50 * self.steps + 13

    @property
    def known_after(self) -> int:
        """Steps after which there is a first result, when nothing cuts in."""
        return LEAST * self.apart + 2 * self.steps + self.discarded


# Where a step is over when the CPU says so, the median keeps out what other programs did to single steps.
SYNCHRONOUS = Plan(steps=20, discarded=2, by_block=False)

# On a device that works behind a queue the CPU's time of one step tells how full the queue is: only over
# several steps does the CPU keep the device's pace. A CUDA stream takes about a thousand launches before it
# makes the CPU wait, which is one to ten steps; what is compared is three times longer.
ASYNCHRONOUS = Plan(steps=40, discarded=8, by_block=True)


class Comparison(NamedTuple):
    """One block: how long a step took without observers, and with them around it."""

    without_ns: float
    with_ns: float


class OwnCost(NamedTuple):
    """What observers add to a step. All times in nanoseconds."""

    comparisons: int
    step_ns: float
    extra_ns: float
    low_ns: float
    high_ns: float

    @property
    def is_visible(self) -> bool:
        """Whether the interval lies above zero."""
        return self.low_ns > 0

    @property
    def extra_pct(self) -> float:
        """What they add, of a step without them."""
        return 100 * self.extra_ns / self.step_ns


def compare(plan: Plan, before: Sequence[int], without: Sequence[int], after: Sequence[int]) -> Comparison:
    """One block's comparison, from the durations of its steps and of those around it, in nanoseconds, the
    discarded ones left out. Both sides weigh the same, so that a drift cancels."""
    usual = statistics.fmean if plan.by_block else statistics.median
    return Comparison(usual(without), (usual(before) + usual(after)) / 2)


def own_cost(found: Sequence[Comparison]) -> OwnCost | None:
    """What so many comparisons say together; None while they are too few."""
    if len(found) < LEAST:
        return None
    differences = sorted(one.with_ns - one.without_ns for one in found)
    low, high = interval(differences)
    step_ns = statistics.median(one.without_ns for one in found)
    return OwnCost(len(found), step_ns, statistics.median(differences), low, high)


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Between which two of the `ordered` values the median lies, at `CONFIDENCE` or more; there have to be
    `LEAST` of them."""
    count = len(ordered)
    outside, cut = 0.0, 0
    while outside + 2 * comb(count, cut) / 2**count <= 1 - CONFIDENCE:
        outside += 2 * comb(count, cut) / 2**count
        cut += 1
    return ordered[cut - 1], ordered[count - cut]


def sentence(cost: OwnCost) -> str:
    """What it costs, for people."""
    step, blocks = words.duration(cost.step_ns), f"{cost.comparisons:,} blocks of steps without it"
    if not cost.is_visible:
        most = words.duration(max(abs(cost.low_ns), abs(cost.high_ns)))
        return f"No visible cost: below ± {most} of a step of {step} ({blocks})."
    spread = f"{words.duration(cost.low_ns)} to {words.duration(cost.high_ns)}"
    share = f"{words.figure(cost.extra_pct, 2)} %"
    return f"Adds {words.duration(cost.extra_ns)} ({spread}) to a step of {step}, {share} ({blocks})."

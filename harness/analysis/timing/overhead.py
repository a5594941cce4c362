"""Overhead of observation per step, from blocks of unobserved steps and the observed steps around them.

A block is compared with the steps right before and right after it, so slow drift (clocks, heat, other load)
cancels. The differences of all blocks give a median, and an interval by order statistics: for any
distribution, the median lies between the k-th smallest and the k-th largest of n differences with a
probability given by the binomial distribution (David and Nagaraja, Order Statistics, 2003, section 7.1).
"""

import statistics
from collections.abc import Sequence
from math import comb
from typing import NamedTuple

from harness import words

CONFIDENCE = 0.95
# Smallest number of differences with such an interval: its limits are then the extremes, at 96.9 %.
MIN_COMPARISONS = 6
# Longest block, during which the page shows nothing new. The overhead on longer steps is too small to
# measure.
MAX_BLOCK_NS = 5_000_000_000


class BlockPlan(NamedTuple):
    """Layout of the blocks, and the statistic that compares them."""

    # Length of a block; as many observed steps are used on either side.
    steps: int
    # Steps discarded at the beginning of a block and after it, while caches and queues adapt.
    discarded: int
    # True to compare the mean step of whole blocks instead of the median step.
    by_block: bool

    @property
    def apart(self) -> int:
        """Steps from the beginning of one block to the next, and to the first: less than 2 % are unobserved.
        1,013 or 2,013 steps, so that blocks do not align with events every 10 or 64 steps."""
        return 50 * self.steps + 13

    @property
    def steps_needed(self) -> int:
        """Steps until the first result, without interruptions."""
        return MIN_COMPARISONS * self.apart + 2 * self.steps + self.discarded


# On a synchronous device the median is robust against other load during single steps.
SYNCHRONOUS = BlockPlan(steps=20, discarded=2, by_block=False)

# On an asynchronous device the CPU time of a single step depends on the fill of the launch queue; only over
# several steps does the CPU run at the device's pace. A CUDA stream queues about a thousand launches before
# it blocks the CPU, which is one to ten steps; blocks are three times longer.
ASYNCHRONOUS = BlockPlan(steps=40, discarded=8, by_block=True)


class BlockComparison(NamedTuple):
    """One block: time per step without observers, and with them in the steps around it."""

    without_ns: float
    with_ns: float


class StepOverhead(NamedTuple):
    """Overhead per step, with its interval. All times in nanoseconds."""

    comparisons: int
    step_ns: float
    extra_ns: float
    low_ns: float
    high_ns: float

    @property
    def is_visible(self) -> bool:
        """True when the interval lies above zero."""
        return self.low_ns > 0

    @property
    def extra_pct(self) -> float:
        """Overhead in percent of a step without observers."""
        return 100 * self.extra_ns / self.step_ns


def compare_block(
    plan: BlockPlan, before: Sequence[int], without: Sequence[int], after: Sequence[int]
) -> BlockComparison:
    """Compare one block, by the durations in ns of its steps and of those around it, without discarded ones.
    Both sides have the same weight, so drift cancels."""
    usual = statistics.fmean if plan.by_block else statistics.median
    return BlockComparison(usual(without), (usual(before) + usual(after)) / 2)


def estimate_overhead(comparisons: Sequence[BlockComparison]) -> StepOverhead | None:
    """Estimate the overhead from all comparisons; None while they are too few."""
    if len(comparisons) < MIN_COMPARISONS:
        return None
    differences = sorted(one.with_ns - one.without_ns for one in comparisons)
    low, high = interval(differences)
    step_ns = statistics.median(one.without_ns for one in comparisons)
    return StepOverhead(len(comparisons), step_ns, statistics.median(differences), low, high)


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """The two of the `ordered` values between which the median lies with at least `CONFIDENCE`; needs at
    least `MIN_COMPARISONS` values."""
    count = len(ordered)
    outside, cut = 0.0, 0
    while outside + 2 * comb(count, cut) / 2**count <= 1 - CONFIDENCE:
        outside += 2 * comb(count, cut) / 2**count
        cut += 1
    return ordered[cut - 1], ordered[count - cut]


def sentence(overhead: StepOverhead) -> str:
    """The overhead in one sentence."""
    step, blocks = words.duration(overhead.step_ns), f"{overhead.comparisons:,} blocks of unobserved steps"
    if not overhead.is_visible:
        most = words.duration(max(abs(overhead.low_ns), abs(overhead.high_ns)))
        return f"No measurable overhead: below ± {most} per step of {step} ({blocks})."
    spread = f"{words.duration(overhead.low_ns)} to {words.duration(overhead.high_ns)}"
    share = f"{words.figure(overhead.extra_pct, 2)} %"
    return f"Overhead: {words.duration(overhead.extra_ns)} ({spread}) per step of {step}, {share} ({blocks})."

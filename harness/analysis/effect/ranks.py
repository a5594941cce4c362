"""Permutation test over blocks of time: a single outlying block is not a change."""

from collections.abc import Callable, Sequence

from harness.analysis.effect.windows import SteadyStep, StepWindow

# Blocks per side. Eight blocks can be split into two halves in 70 ways.
BLOCKS = 4
# At most one pair of 16 in the wrong order happens by chance in 4 of 70 ways to split the blocks, none at all
# in 2 of 70, upwards and downwards taken together (Mann and Whitney, 1947).
ONE, NONE = 1, 0

# Statistic of a block.
BlockStatistic = Callable[[Sequence[SteadyStep]], float]


def are_apart(before: StepWindow, after: StepWindow, level: BlockStatistic, inversions: int) -> bool:
    """Return whether the levels of one side's blocks all exceed those of the other side, except for
    `inversions` pairs."""
    old, new = ([level(block) for block in window.blocks(BLOCKS) if block] for window in (before, after))
    above = sum(later > earlier for earlier in old for later in new)
    below = sum(later < earlier for earlier in old for later in new)
    return max(above, below) >= len(old) * len(new) - inversions


def low_step(block: Sequence[SteadyStep], share: float) -> float:
    """Return the quantile of step times at `share`."""
    ordered = sorted(step.step_ns for step in block)
    return ordered[int(len(ordered) * share)]


def low_sample(block: Sequence[SteadyStep], share: float) -> float:
    """Return the quantile of the time per sample at `share`."""
    ordered = sorted(step.step_ns / step.samples for step in block)
    return ordered[int(len(ordered) * share)]


def samples_per_time(block: Sequence[SteadyStep]) -> float:
    """Return the samples per nanosecond."""
    return sum(step.samples * step.step_count for step in block) / sum(step.passed_ns for step in block)

"""A permutation test over blocks of time: an outlying block alone makes no change."""

from collections.abc import Callable, Sequence

from harness.analysis.effect.windows import Passage, StepWindow

BLOCKS = 4
"""Blocks of each side. Eight blocks can be split into two halves in 70 ways."""
# At most one pair of 16 in the wrong order happens by chance in 4 of 70 ways to split the blocks, none at all
# in 2 of 70, upwards and downwards taken together (Mann and Whitney, 1947).
ONE, NONE = 1, 0

Level = Callable[[Sequence[Passage]], float]
"""What stands for a block."""


def are_apart(before: StepWindow, after: StepWindow, level: Level, inversions: int) -> bool:
    """Whether the levels of the blocks of one side lie above those of the other side's, but for so many
    pairs."""
    old, new = ([level(block) for block in window.blocks(BLOCKS) if block] for window in (before, after))
    above = sum(later > earlier for earlier in old for later in new)
    below = sum(later < earlier for earlier in old for later in new)
    return max(above, below) >= len(old) * len(new) - inversions


def low_step(block: Sequence[Passage], share: float) -> float:
    """The quantile of step times at `share`."""
    ordered = sorted(step.step_ns for step in block)
    return ordered[int(len(ordered) * share)]


def low_sample(block: Sequence[Passage], share: float) -> float:
    """The quantile of the time per sample at `share`."""
    ordered = sorted(step.step_ns / step.samples for step in block)
    return ordered[int(len(ordered) * share)]


def samples_per_time(block: Sequence[Passage]) -> float:
    """Samples per nanosecond."""
    return sum(step.samples * step.step_count for step in block) / sum(step.passed_ns for step in block)

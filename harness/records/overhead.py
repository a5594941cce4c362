"""Rows about the overhead of Stepscope in a run."""

from typing import NamedTuple


class UnobservedRow(NamedTuple):
    """A block of consecutive steps that ran with the observers off, for comparison with observed steps. These
    steps have no `StepRow`; their numbers, samples and tokens are here."""

    first_step: int
    last_step: int
    # End of the last step.
    t_ns: int
    # From the start of the first step to the end of the last, on the CPU clock.
    wall_ns: int
    # Sum over the block, as are the tokens.
    samples: int
    tokens: int | None
    settings_version: int


class OverheadRow(NamedTuple):
    """The current estimate of the overhead per step, from all comparisons under the same settings."""

    t_ns: int
    step: int
    settings_version: int
    # Blocks of unobserved steps, each compared with the observed steps right before and after it.
    comparisons: int
    # Duration of a step without observers: the median of the blocks.
    step_ns: int
    # Overhead of the observers: the median of the blocks' differences.
    extra_ns: int
    # Lower end of its interval, of 95 % or a little more.
    low_ns: int
    # Upper end.
    high_ns: int
    # One sentence.
    message: str

"""The rows about what Stepscope itself costs a run."""

from typing import NamedTuple


class UnobservedRow(NamedTuple):
    """Steps in a row that were taken with the observers switched off, so that they can be compared with
    others. They have no row of their own among the steps; their numbers, samples and tokens are here."""

    first_step: int
    last_step: int
    # End of the last.
    t_ns: int
    # From the start of the first to the end of the last, on the CPU's clock.
    wall_ns: int
    # Of all of them together, as are the tokens.
    samples: int
    tokens: int | None
    settings_version: int


class OwnCostRow(NamedTuple):
    """What observing a step costs, as far as it is known by then; each row takes all comparisons under its
    settings together."""

    t_ns: int
    step: int
    settings_version: int
    # Blocks of unobserved steps, each compared with the observed ones right before and after it.
    comparisons: int
    # A step without observers: the median of the blocks.
    step_ns: int
    # What observers add: the median of the blocks' differences.
    extra_ns: int
    # Lower end of its interval, of 95 % or a little more.
    low_ns: int
    # Upper end.
    high_ns: int
    # One sentence.
    message: str

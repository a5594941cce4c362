"""Peak memory around a change, from the highest readings of blocks of time.

Short steps share a reading, and a sampler may miss the moment of the peak: the value of a single step is
often too low, unlike the maximum of a second or more. If the maxima are constant on both sides, their ratio
is exact; if they vary, or memory still rises by itself, the interval is wider.
"""

import math
from itertools import pairwise
from statistics import median

from harness.analysis.effect.uncertainty import Difference
from harness.analysis.effect.windows import Chains, StepWindow

BLOCKS = 8
# Minimum number of blocks with a reading.
_LEAST_BLOCKS = 4


def compare_peaks(before: StepWindow, after: StepWindow, history: Chains) -> tuple[float, Difference] | None:
    """Return the peak before the change in bytes, and the difference of the logarithms; None if either side
    has too few readings, or a reading of zero.

    The limits are those of the extremes of both sides, extended by twice the largest difference between the
    peaks of neighboring windows in `history` and of the halves of either side: memory that rises by r from
    half to half rises by 2 r from window to window.
    """
    old, new = block_peaks(before), block_peaks(after)
    if min(len(old), len(new)) < _LEAST_BLOCKS or min(*old, *new) == 0:
        return None
    pairs = [pair for chain in history for pair in pairwise(chain)]
    pairs += [before.halves(), after.halves()]
    drift = 2 * max(_drift(*pair) for pair in pairs)
    low = math.log(min(new) / max(old)) - drift
    high = math.log(max(new) / min(old)) + drift
    return median(old), Difference(math.log(median(new) / median(old)), low, high)


def block_peaks(window: StepWindow) -> list[int]:
    """Return the highest reading of each of `BLOCKS` blocks of equal time; blocks without one are skipped."""
    readings = (
        [step.peak_allocated_bytes for step in block if step.peak_allocated_bytes is not None]
        for block in window.blocks(BLOCKS)
    )
    return [max(block) for block in readings if block]


def _drift(first: StepWindow, second: StepWindow) -> float:
    """Return the log ratio of the peaks of two windows; 0 if they cannot be compared."""
    one, other = block_peaks(first), block_peaks(second)
    if not one or not other or min(*one, *other) == 0:
        return 0.0
    return abs(math.log(median(other) / median(one)))

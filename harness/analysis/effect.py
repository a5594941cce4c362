"""What could be seen to differ before and after a change: an *observed* change, not a measured effect.

One sequential comparison cannot tell a setting's effect from a drift that happened at the same time (on
drifting series it calls a difference in most cases where there is none), so the words stay careful.

Method: flagged steps (warm-up, transition, profiled) are left out; each side is cut into 8 contiguous blocks,
so that neighbouring steps, which are alike, do not count as independent; a Welch interval at 95 % over the
logarithms of the block medians gives the ratio after/before. A difference is called visible when the interval
leaves out 1 and the ratio is at least 1 % away from it.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, median, variance
from typing import NamedTuple

from harness import words
from harness.records import StepRow

WINDOW_STEPS = 200
"""Steps looked at on each side."""

BLOCKS = 8
MIN_STEPS = 2 * BLOCKS
"""Fewer steps than this on a side, and it is too early to say."""

T_QUANTILE = 2.365
"""Student's t at 97.5 % and 7 degrees of freedom, the least that Welch's formula can give here."""

PRACTICAL = 0.01
"""Ratios closer to 1 than this are no visible change."""


class Comparison(NamedTuple):
    """One figure before and after: medians, their ratio and its 95 % interval."""

    before: float
    after: float
    ratio: float
    low: float
    high: float

    @property
    def is_visible(self) -> bool:
        """Whether the figure can be seen to differ."""
        return (self.low > 1 or self.high < 1) and abs(self.ratio - 1) >= PRACTICAL


class ObservedChange(NamedTuple):
    """What differed around a change. The comparisons are None while it is too early to say.

    `left_out` counts the flagged steps that were not looked at.
    """

    steps_before: int
    steps_after: int
    left_out: int
    step_ns: Comparison | None
    samples_per_s: Comparison | None
    peak_bytes: Comparison | None
    verdict: str


def observe(before: Sequence[StepRow], after: Sequence[StepRow]) -> ObservedChange:
    """Compare the steps before a change with those after it; both in order, flagged steps included."""
    old = [row for row in before if not row.flags][-WINDOW_STEPS:]
    new = [row for row in after if not row.flags][:WINDOW_STEPS]
    left_out = sum(1 for row in (*before, *after) if row.flags)
    if min(len(old), len(new)) < MIN_STEPS:
        return ObservedChange(len(old), len(new), left_out, None, None, None, _too_early(len(old), len(new)))
    step_ns = _compare(old, new, lambda row: row.step_ns)
    samples_per_s = _compare(old, new, lambda row: row.samples * 1e9 / row.step_ns)
    peak = _compare(old, new, lambda row: row.peak_allocated_bytes)
    return ObservedChange(
        len(old), len(new), left_out, step_ns, samples_per_s, peak, _verdict(step_ns, samples_per_s, peak)
    )


def _compare(
    old: Sequence[StepRow], new: Sequence[StepRow], figure: Callable[[StepRow], float | None]
) -> Comparison | None:
    """Compare one figure; None where it was not measured, or was zero, on either side."""
    sides = [[value for row in rows if (value := figure(row))] for rows in (old, new)]
    if min(map(len, sides)) < MIN_STEPS:
        return None
    logs = [[math.log(block) for block in _block_medians(side)] for side in sides]
    difference = fmean(logs[1]) - fmean(logs[0])
    error = math.sqrt(sum(variance(side) / len(side) for side in logs))
    before, after = median(sides[0]), median(sides[1])
    return Comparison(
        before,
        after,
        math.exp(difference),
        math.exp(difference - T_QUANTILE * error),
        math.exp(difference + T_QUANTILE * error),
    )


def _block_medians(values: Sequence[float]) -> list[float]:
    edges = [round(i * len(values) / BLOCKS) for i in range(BLOCKS + 1)]
    return [median(values[low:high]) for low, high in pairwise(edges)]


def _too_early(before: int, after: int) -> str:
    if before < MIN_STEPS:
        return f"Too few steps before the change to compare ({before} of {MIN_STEPS})."
    return f"Too early to say: {after} of {MIN_STEPS} settled steps."


def _verdict(step_ns: Comparison | None, samples: Comparison | None, peak: Comparison | None) -> str:
    named = (
        ("step time", step_ns, words.duration),
        ("throughput", samples, words.rate),
        ("peak memory", peak, words.size),
    )
    parts = [
        f"{name} {text(figure.before)} → {text(figure.after)} ({figure.ratio - 1:+.0%})"
        for name, figure, text in named
        if figure is not None and figure.is_visible
    ]
    if not parts:
        return "No visible change in step time, samples/s or peak memory."
    return "Observed: " + "; ".join(parts) + "."

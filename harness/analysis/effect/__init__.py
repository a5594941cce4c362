"""The difference around a change of settings: an *observed* change, not a measured effect.

One sequential comparison cannot distinguish a setting's effect from a simultaneous drift, so it is reported
as an observation. Windows of equal length in seconds lie on both sides of the change
(`harness.analysis.effect.windows`). Three figures are compared:

* the undisturbed step, a low quantile of step times (the 0.5th to the 10th percentile, by the number of
  steps): other processes make some steps longer and do not affect the fastest ones; or the step at equal
  machine speed (`harness.analysis.effect.reference`), where its interval is narrower;
* the throughput, samples over time, which counts every step;
* peak memory, from the highest readings of blocks of time (`harness.analysis.effect.peaks`).

`harness.analysis.effect.uncertainty` documents the intervals.
"""

from harness.analysis.effect.observing import (
    PRACTICAL,
    FigureChange,
    ObservedChange,
    missing_time,
    observe,
)
from harness.analysis.effect.windows import LENGTHS_S, MIN_STEPS, count_lengths

__all__ = [
    "LENGTHS_S",
    "MIN_STEPS",
    "PRACTICAL",
    "FigureChange",
    "ObservedChange",
    "count_lengths",
    "missing_time",
    "observe",
]

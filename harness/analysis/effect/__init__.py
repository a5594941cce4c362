"""The difference around a change of settings: an *observed* change, not a measured effect.

One sequential comparison cannot tell a setting's effect from a drift that happened at the same time, so the
words stay careful. Windows of the same length in seconds lie on both sides of the change
(`harness.analysis.effect.windows`). Three figures are compared:

* the undisturbed step, a low quantile of step times (the 2nd to the 10th percentile, by how many there are):
  other processes make some steps longer and leave the fastest ones as they are;
* the throughput, samples over time, which counts every step;
* the peak of memory, from the highest readings of blocks of time (`harness.analysis.effect.peaks`).

`harness.analysis.effect.uncertainty` says how the intervals come about.
"""

from harness.analysis.effect.observing import (
    PRACTICAL,
    FigureChange,
    ObservedChange,
    lacking_time,
    observe,
)
from harness.analysis.effect.windows import LENGTHS_S, MIN_STEPS, reached

__all__ = [
    "LENGTHS_S",
    "MIN_STEPS",
    "PRACTICAL",
    "FigureChange",
    "ObservedChange",
    "lacking_time",
    "observe",
    "reached",
]

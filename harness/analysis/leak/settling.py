"""Growth of the CPU's heap while it settles, which is no leak.

malloc takes new memory where no hole fits. As blocks of several sizes are freed and allocated again, holes
are split and lost to smaller blocks, and the heap grows by a block, ever more rarely, until each step finds
room. Until then the process grows in steps that look the same as growing holes.
"""

from harness.analysis.leak.growth import Judgment
from harness.records.memory import LeakSeries, LeakVerdict

# Holes may grow by this multiple of the largest transient memory of a step before the heap has settled. That
# memory is a lower bound: it lacks the gradients, and what is freed between two readings. In 40 runs of
# healthy scripts that train transformers of random sizes, with and without batches of varying length, all
# growth was at most 2.05 times as large.
MOST_UNTIL_SETTLED = 3.0
# Memory that outlives its step and is replaced later, as in a buffer with a limit, leaves holes too: of a
# deque of 73 MiB 24 and 27 % of that in two runs, after its items had been replaced three times. Holes may
# grow by this share of what live memory has grown by.
MOST_OF_GROWN = 0.5
# Growth is not of the heap if at least this share of it is certainly outside.
_MOSTLY = 0.5


class LiveRange:
    """The range of live memory over a run; a change of settings does not end it."""

    def __init__(self) -> None:
        self._lowest_bytes: int | None = None
        self._highest_bytes = 0

    def add(self, live_bytes: int | None) -> None:
        """Add a reading after a step; None is ignored."""
        if live_bytes is not None:
            lowest_bytes = live_bytes if self._lowest_bytes is None else self._lowest_bytes
            self._lowest_bytes = min(live_bytes, lowest_bytes)
            self._highest_bytes = max(live_bytes, self._highest_bytes)

    @property
    def grown_bytes(self) -> int:
        """The highest reading above the lowest; 0 without any."""
        return 0 if self._lowest_bytes is None else self._highest_bytes - self._lowest_bytes


def settled(
    judgments: dict[LeakSeries, Judgment], transient_bytes: int, grown_bytes: int
) -> dict[LeakSeries, Judgment]:
    """Return the verdicts, no more than "watch" for holes, and for the process, that may still settle. Steps
    need up to `transient_bytes` beyond what outlives them, and live memory has grown by `grown_bytes`."""
    host, holes = judgments[LeakSeries.HOST], judgments[LeakSeries.FRAGMENTATION]
    least_bytes = max(MOST_UNTIL_SETTLED * transient_bytes, MOST_OF_GROWN * grown_bytes)
    result = judgments | {LeakSeries.FRAGMENTATION: _until(holes, least_bytes)}
    if not _is_outside(host, holes):
        result[LeakSeries.HOST] = _until(host, least_bytes)
    return result


def _is_outside(host: Judgment, holes: Judgment) -> bool:
    """Return whether the process certainly grows outside the heap, as with small objects of Python."""
    if host.trend is None or holes.trend is None:
        return False
    return host.trend.low - max(0.0, holes.trend.high) >= _MOSTLY * host.trend.slope


def _until(judgment: Judgment, least_bytes: float) -> Judgment:
    """Return `judgment` as that of a series that settles until it has grown by `least_bytes`."""
    span = max(judgment.last_step - judgment.since_step, 1)
    if judgment.detection_limit is not None:
        limit = max(judgment.detection_limit, least_bytes / span)
        judgment = judgment._replace(detection_limit=limit)
    if judgment.verdict is not LeakVerdict.LEAK:
        return judgment
    if (judgment.risen_bytes or 0.0) < least_bytes:
        return judgment._replace(verdict=LeakVerdict.WATCH, settles_below=least_bytes)
    # A judge holds on to "leak", which it may have reached before this much had grown.
    trend = judgment.from_onset().trend
    is_growing = trend is not None and trend.low > 0
    return judgment if is_growing else judgment._replace(verdict=LeakVerdict.WATCH)

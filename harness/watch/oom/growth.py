"""Growth of live memory before an out-of-memory error, from the rows of the last steps.

The leak detector requires some hundred readings under the same settings. A script that retains memory may
fail before, and a change of settings, as of the cap, begins the count anew. Here the growth of fewer steps,
under any settings, counts if it is even, and if one variable holds most of it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from harness.analysis.leak.detector import ReadingFilter
from harness.analysis.oom.report import LeakSign, LiveVariable
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import StepFlag, StepRow

_PARTS = 4
_LEAST_READINGS = 4 * _PARTS
# Of the mean rise from one part to the next: each is at least so large.
_LEAST_RISE = 0.5
# Of the growth: so much is in one variable.
_LEAST_IN_VARIABLE = 0.5


class _Low(NamedTuple):
    """The lowest reading of one part of the steps."""

    level_bytes: int
    step: int


def growing_memory(rows: Sequence[StepRow]) -> LeakRow | None:
    """Return the growth of live memory between steps over the most of the newest `rows` in which it is even;
    None without any."""
    readings = [
        (row.step, row.allocated_bytes)
        for row in ReadingFilter().pick(row for row in rows if not row.flags & StepFlag.WARM_UP)
        if row.allocated_bytes is not None
    ]
    while len(readings) >= _LEAST_READINGS:
        lows = _lows(readings)
        rises = [after.level_bytes - low.level_bytes for low, after in pairwise(lows)]
        total = sum(rises)
        if total > 0 and min(rises) >= _LEAST_RISE * total / len(rises):
            return _row(readings[0][0], readings[-1][0], total / (lows[-1].step - lows[0].step))
        readings = readings[len(readings) // 2 :]
    return None


def _lows(readings: Sequence[tuple[int, int]]) -> list[_Low]:
    bounds = [len(readings) * part // _PARTS for part in range(_PARTS + 1)]
    return [
        min(_Low(level_bytes, step) for step, level_bytes in readings[begin:end])
        for begin, end in pairwise(bounds)
    ]


def _row(since_step: int, step: int, slope: float) -> LeakRow:
    risen_bytes = round(slope * (step - since_step))
    verdict, series = LeakVerdict.WATCH, LeakSeries.ALLOCATED
    return LeakRow(0, step, series, verdict, since_step, slope, None, None, risen_bytes, None, None, "", None)


def with_growth(
    leak: LeakSign | None, growth: LeakSign | None, variables: Sequence[LiveVariable]
) -> LeakSign | None:
    """Return the leak detector's `leak`, or the `growth` of live memory if that is larger and one of the
    `variables` holds most of it. What autograd has saved in a variable is freed with the step."""
    if growth is None or growth.leaked_bytes is None or not variables:
        return leak
    if max(one.held_bytes - one.saved_bytes for one in variables) < _LEAST_IN_VARIABLE * growth.leaked_bytes:
        return leak
    if leak is None:
        return growth
    if growth.leaked_bytes <= (leak.leaked_bytes or 0):
        return leak
    if leak.series != growth.series:
        return growth
    return growth._replace(hunt=leak.hunt, is_certain=leak.is_certain, cause=leak.cause)

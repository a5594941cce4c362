"""Growth of live memory before an out-of-memory error, from the rows of the last steps.

The leak detector requires some hundred readings under the same settings. A script that retains memory may
fail before, and a change of settings, as of the cap, begins the count anew. Here the growth of fewer steps,
under any settings, counts if it is even, and if one variable holds most of it.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

from harness.analysis.leak.detector import ReadingFilter
from harness.analysis.oom.report import LeakSign, LiveVariable
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import StepFlag, StepRow

_PARTS = 4
_LEAST_READINGS = 2 * _PARTS
# Of the mean rise from one part to the next: each is at least so large.
_LEAST_RISE = 0.5
# Samples or tokens per step in the last part, as a multiple of those in the first: with more, inputs grow.
_MOST_INPUTS = 1.25
# Of the growth: one variable holds so much, in so many objects, and no more than this multiple in graphs:
# what they save for the step that failed is no growth between steps.
_LEAST_IN_VARIABLE = 0.5
_LEAST_OBJECTS = 8
_MOST_IN_GRAPHS = 1.5


class _Low(NamedTuple):
    """The lowest reading of one part of the steps."""

    level_bytes: int
    step: int


def growing_memory(rows: Sequence[StepRow]) -> LeakRow | None:
    """Return the growth of live memory between steps over the most of the newest `rows` in which it is even;
    None without any, and where the inputs of steps grow."""
    readings = ReadingFilter().pick(row for row in rows if not row.flags & StepFlag.WARM_UP)
    while len(readings) >= _LEAST_READINGS:
        bounds = [len(readings) * part // _PARTS for part in range(_PARTS + 1)]
        parts = [readings[begin:end] for begin, end in pairwise(bounds)]
        lows = [low for part in parts if (low := _low(part)) is not None]
        rises = [after.level_bytes - before.level_bytes for before, after in pairwise(lows)]
        total = sum(rises)
        if len(lows) == _PARTS and total > 0 and min(rises) >= _LEAST_RISE * total / len(rises):
            slope = total / (lows[-1].step - lows[0].step)
            return None if _inputs_grow(parts[0], parts[-1]) else _row(readings, slope)
        readings = readings[len(readings) // 2 :]
    return None


def _low(part: Sequence[StepRow]) -> _Low | None:
    return min(
        (_Low(row.allocated_bytes, row.step) for row in part if row.allocated_bytes is not None), default=None
    )


def _inputs_grow(first: Sequence[StepRow], last: Sequence[StepRow]) -> bool:
    return any(
        mean(after) > _MOST_INPUTS * mean(before)
        for before, after in (
            ([row.samples for row in first], [row.samples for row in last]),
            ([row.tokens or 0 for row in first], [row.tokens or 0 for row in last]),
        )
    )


def _row(readings: Sequence[StepRow], slope: float) -> LeakRow:
    since_step, step = readings[0].step, readings[-1].step
    risen_bytes = round(slope * (step - since_step))
    verdict, series = LeakVerdict.WATCH, LeakSeries.ALLOCATED
    return LeakRow(0, step, series, verdict, since_step, slope, None, None, risen_bytes, None, None, "", None)


def with_growth(
    leak: LeakSign | None, growth: LeakSign | None, variables: Sequence[LiveVariable]
) -> LeakSign | None:
    """Return the leak detector's `leak`, or the `growth` of live memory if that is larger and one of the
    `variables` holds most of it."""
    if growth is None or not growth.leaked_bytes:
        return leak
    if not any(_holds(variable, growth.leaked_bytes) for variable in variables):
        return leak
    if leak is None:
        return growth
    if growth.leaked_bytes <= (leak.leaked_bytes or 0):
        return leak
    if leak.series != growth.series:
        return growth
    return growth._replace(hunt=leak.hunt, is_certain=leak.is_certain, cause=leak.cause)


def _holds(variable: LiveVariable, grown_bytes: int) -> bool:
    return (
        variable.blocks >= _LEAST_OBJECTS
        and variable.held_bytes >= _LEAST_IN_VARIABLE * grown_bytes
        and variable.saved_bytes <= _MOST_IN_GRAPHS * grown_bytes
    )

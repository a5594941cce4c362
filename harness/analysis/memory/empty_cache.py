"""Effect of an `empty_cache()`: memory released, and extra time of the steps after it."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from harness.files.plain_json import json_object
from harness.records.run import EXCLUDED_FLAGS, RECORDED_FLAGS, EventKind, EventRow, StepRow

# Steps measured after it. The allocator reserves what it needs again within the first one or two.
FOLLOWED_STEPS = 10
BEFORE_STEPS = 40
MIN_STEPS_BEFORE = 8
# Standard errors of the scatter of step times from which a cost is visible.
VISIBLE_FROM = 4.0
_SIGMA_OF_MAD = 1.4826


class EmptyCacheEffect(NamedTuple):
    """One `empty_cache()`. Values are None where they were not measured."""

    step: int
    freed_bytes: int | None
    # Duration of the call, during which training waits.
    took_ns: int | None
    # Time of the steps after it beyond the median before it, in total; may be negative by chance.
    extra_ns: float | None
    # Standard deviation of that total by chance.
    scatter_ns: float | None
    # Released bytes that were reserved again within those steps.
    regrown_bytes: int | None
    # Number of measured steps after it.
    steps: int

    @property
    def is_visible(self) -> bool | None:
        """True when the cost exceeds chance; None where it was not measured."""
        if self.extra_ns is None or self.scatter_ns is None:
            return None
        return self.extra_ns > VISIBLE_FROM * self.scatter_ns


def empty_cache_effect(
    event: EventRow, before: Sequence[StepRow], after: Sequence[StepRow]
) -> EmptyCacheEffect:
    """Effect of the `empty_cache()` of `event`, from the steps `before` it, without flagged ones, and the
    steps `after` it up to the next change of settings, without recorded ones. Steps are in order."""
    assert event.kind == EventKind.EMPTY_CACHE
    detail = _detail(event.detail)
    usual = [row.step_ns for row in before if not row.flags & EXCLUDED_FLAGS][-BEFORE_STEPS:]
    rows = [row for row in after if not row.flags & RECORDED_FLAGS][:FOLLOWED_STEPS]
    extra_ns = scatter_ns = None
    if len(usual) >= MIN_STEPS_BEFORE and rows:
        usual_ns = median(usual)
        deviation_ns = median(abs(value - usual_ns) for value in usual)
        extra_ns = sum(row.step_ns - usual_ns for row in rows)
        scatter_ns = _SIGMA_OF_MAD * deviation_ns * math.sqrt(len(rows))
    return EmptyCacheEffect(
        step=event.step,
        freed_bytes=detail.get("freed_bytes"),
        took_ns=detail.get("took_ns"),
        extra_ns=extra_ns,
        scatter_ns=scatter_ns,
        regrown_bytes=_regrown(before, rows, detail.get("freed_bytes")),
        steps=len(rows),
    )


def _regrown(before: Sequence[StepRow], after: Sequence[StepRow], freed_bytes: int | None) -> int | None:
    if freed_bytes is None or not before or before[-1].reserved_bytes is None:
        return None
    reserved = [row.reserved_bytes for row in after if row.reserved_bytes is not None]
    if not reserved:
        return None
    return min(freed_bytes, max(0, max(reserved) - (before[-1].reserved_bytes - freed_bytes)))


def _detail(text: str) -> dict[str, int]:
    """The integers in an event's detail."""
    try:
        values = json_object(text)
    except ValueError:
        return {}
    return {name: value for name, value in values.items() if isinstance(value, int)}

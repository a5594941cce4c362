"""What an `empty_cache()` gave back, and what it cost in the steps after it."""

import math
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from harness.plain_json import json_object
from harness.records import EventKind, EventRow, StepFlag, StepRow

# Steps after it that are looked at. The allocator takes what it needs again within the first one or two.
FOLLOWED_STEPS = 10
BEFORE_STEPS = 40
LEAST_BEFORE = 8
# A cost is visible from so many standard errors of the steps' own scatter on.
SURE = 4.0
_SIGMA_OF_MAD = 1.4826
_BEFORE_SKIPPED = StepFlag.WARM_UP | StepFlag.TRANSITION | StepFlag.PROFILED


class Emptied(NamedTuple):
    """One `empty_cache()`. Each figure is None where it cannot be told."""

    step: int
    freed_bytes: int | None
    took_ns: int | None
    """The call itself, which training waited for."""
    extra_ns: float | None
    """What the steps after it took longer than usual, together; may be negative by chance."""
    scatter_ns: float | None
    """What steps so many differ by chance."""
    regrown_bytes: int | None
    """Of what was given back, taken from the system again within those steps."""
    steps: int
    """How many steps after it were looked at."""

    @property
    def is_visible(self) -> bool | None:
        """Whether the cost stands out; None where it is not known."""
        if self.extra_ns is None or self.scatter_ns is None:
            return None
        return self.extra_ns > SURE * self.scatter_ns


def emptied(event: EventRow, before: Sequence[StepRow], after: Sequence[StepRow]) -> Emptied:
    """What the `empty_cache()` of `event` did, from the steps `before` it (flagged ones are left out) and
    those `after` it, up to the next change of settings, in order; of these profiled ones are left out."""
    assert event.kind == EventKind.EMPTY_CACHE
    detail = _detail(event.detail)
    usual = [row.step_ns for row in before if not row.flags & _BEFORE_SKIPPED][-BEFORE_STEPS:]
    rows = [row for row in after if not row.flags & StepFlag.PROFILED][:FOLLOWED_STEPS]
    extra = scatter = None
    if len(usual) >= LEAST_BEFORE and rows:
        middle = median(usual)
        deviation = median(abs(value - middle) for value in usual)
        extra = sum(row.step_ns - middle for row in rows)
        scatter = _SIGMA_OF_MAD * deviation * math.sqrt(len(rows))
    return Emptied(
        step=event.step,
        freed_bytes=detail.get("freed_bytes"),
        took_ns=detail.get("took_ns"),
        extra_ns=extra,
        scatter_ns=scatter,
        regrown_bytes=_regrown(before, rows, detail.get("freed_bytes")),
        steps=len(rows),
    )


def _regrown(before: Sequence[StepRow], after: Sequence[StepRow], freed: int | None) -> int | None:
    if freed is None or not before or before[-1].reserved_bytes is None:
        return None
    held = [row.reserved_bytes for row in after if row.reserved_bytes is not None]
    if not held:
        return None
    return min(freed, max(0, max(held) - (before[-1].reserved_bytes - freed)))


def _detail(text: str) -> dict[str, int]:
    """The numbers in an event's detail."""
    try:
        found = json_object(text)
    except ValueError:
        return {}
    return {name: value for name, value in found.items() if isinstance(value, int)}

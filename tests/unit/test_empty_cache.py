"""The effect of an empty_cache() is measured by the steps around it, where there are enough."""

import json
from typing import Any

import pytest

from harness.analysis.memory.empty_cache import FOLLOWED_STEPS, empty_cache_effect
from harness.records.run import EventKind, EventRow, Severity, StepFlag, StepRow
from tests.store_factories import a_step

GIB = 2**30


def an_event(step: int = 100, **detail: Any) -> EventRow:
    text = json.dumps(detail)
    return EventRow(0, step, EventKind.EMPTY_CACHE, Severity.INFO, "empty_cache()", "Gone.", text, None)


def rows(first: int, count: int, step_ns: int = 10_000_000, reserved: int | None = 10 * GIB) -> list[StepRow]:
    return [
        a_step(step)._replace(step_ns=step_ns + (step % 3) * 10_000, reserved_bytes=reserved, flags=0)
        for step in range(first, first + count)
    ]


def test_the_cost_is_the_extra_time_of_the_following_steps() -> None:
    after = rows(100, FOLLOWED_STEPS, reserved=8 * GIB)
    after[0] = after[0]._replace(step_ns=60_000_000, flags=StepFlag.TRANSITION)
    effect = empty_cache_effect(an_event(freed_bytes=4 * GIB, took_ns=3_000_000), rows(50, 50), after)
    assert (effect.freed_bytes, effect.took_ns) == (4 * GIB, 3_000_000)
    assert effect.extra_ns == pytest.approx(50_000_000, rel=0.01)
    assert effect.is_visible
    assert effect.regrown_bytes == 2 * GIB


def test_steps_within_the_scatter_show_no_cost() -> None:
    effect = empty_cache_effect(an_event(freed_bytes=0, took_ns=1), rows(50, 50), rows(100, 10))
    assert effect.is_visible is False
    assert effect.regrown_bytes == 0


def test_values_that_were_not_measured_are_none() -> None:
    effect = empty_cache_effect(an_event(), rows(95, 5), [])
    assert effect[1:6] == (None,) * 5
    assert effect.is_visible is None


def test_flagged_steps_before_it_are_left_out() -> None:
    before = [row._replace(flags=StepFlag.WARM_UP) for row in rows(90, 10)]
    assert empty_cache_effect(an_event(freed_bytes=1), before, rows(100, 10)).extra_ns is None


def test_an_unreadable_detail_is_no_error() -> None:
    assert empty_cache_effect(an_event()._replace(detail="[1]"), [], []).freed_bytes is None
    assert empty_cache_effect(an_event()._replace(detail="?"), [], []).freed_bytes is None


def test_profiled_steps_after_it_are_left_out() -> None:
    after = rows(100, 5)
    after[2] = after[2]._replace(step_ns=90_000_000, flags=StepFlag.PROFILED)
    effect = empty_cache_effect(an_event(freed_bytes=0, took_ns=1), rows(50, 50), after)
    assert effect.is_visible is False
    assert effect.steps == 4

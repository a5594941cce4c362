"""Test that pages which a trim returned and steps touch again are no leak, and that a leak beside them is."""

from collections.abc import Callable

import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Limits
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from tests.leak_factories import GIB, MIB, a_row

KIB = 1024
LIVE = 42 * MIB
# A run with 110 MiB of holes under a cap set before this step: resident memory outside live objects fell from
# 417 to 309 MiB, and rose by 36 MiB in the next 560 steps.
CAPPED_STEP, BEFORE, AFTER = 178, 417 * MIB, 309 * MIB
REFILLED_PER_STEP = 65 * KIB
LIMITS = Limits(600 * MIB, 20 * GIB)


def judged(
    resident: Callable[[int], int], data: Callable[[int], int | None], steps: int = 400
) -> list[LeakRow]:
    """All verdicts on the series "host" of a run that is capped live; `resident` and `data` are the bytes
    outside live objects so many steps after that."""
    detector, result = LeakDetector(on_cpu=True), list[LeakRow]()
    for step in range(1, CAPPED_STEP + steps):
        since = step - CAPPED_STEP
        outside = BEFORE if since < 0 else resident(since)
        row = a_row(step, LIVE, rss=LIVE + outside)._replace(settings_version=1 if since < 0 else 2)
        detector.add_steps([row], LIMITS)
        size = None if since < 0 else data(since)
        left = None if size is None else 500 * MIB - size
        detector.add_host(step, None, 110 * MIB, left, size)
        if step % 10 == 0:
            result += [one for one in detector.judge(row.t_ns, LIMITS) if one.series == LeakSeries.HOST]
    return result


def called(rows: list[LeakRow]) -> bool:
    return any(row.verdict == LeakVerdict.LEAK for row in rows)


def refilled(since: int) -> int:
    return AFTER + since * REFILLED_PER_STEP


def test_refilled_holes_are_no_leak_under_a_cap() -> None:
    rows = judged(refilled, lambda _since: 420 * MIB)
    assert not called(rows)
    assert rows[-1].verdict in (LeakVerdict.WATCH, LeakVerdict.STEADY)


@pytest.mark.parametrize("share", [1, 2, 8])
def test_a_leak_of_data_is_one_below_the_earlier_level_too(share: int) -> None:
    leaked = share * REFILLED_PER_STEP
    rows = judged(lambda since: AFTER + since * leaked, lambda since: 420 * MIB + since * leaked)
    assert called(rows)


def test_growth_above_the_earlier_level_is_a_leak_although_a_cap_does_not_count_it() -> None:
    rows = judged(lambda since: AFTER + since * MIB, lambda _since: 420 * MIB)
    assert called(rows)
    assert not called(rows[: (CAPPED_STEP + 100) // 10])


def test_before_the_data_has_enough_readings_the_verdict_is_at_most_watch() -> None:
    rows = judged(refilled, lambda since: 420 * MIB if since > 380 else None)
    assert rows[-1].verdict == LeakVerdict.WATCH


def test_without_a_cap_nothing_is_known_of_the_data_and_all_growth_counts() -> None:
    assert called(judged(refilled, lambda _since: None))

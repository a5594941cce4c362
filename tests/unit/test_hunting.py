"""Test when the line of a leak is searched for, and when once more."""

import json

import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Limits
from harness.records.memory import LeakRow, LeakVerdict
from harness.records.run import EventKind, EventRow
from harness.store.inserts import Row
from harness.watch.capture.hunting import AGAIN_AFTER_S, STEPS, STEPS_AGAIN, HuntResult, LeakHunt
from harness.watch.inbox import Inbox
from harness.watch.jobs.leaks import HostReading, LeakWatch, Readings
from tests.leak_factories import GIB, MIB, a_leak, a_row

NOTHING = HuntResult(206, is_beside_tensors=False)


class Clock:
    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def requested(inbox: Inbox) -> list[int]:
    """The steps of each requested snapshot."""
    return [json.loads(command.payload)["steps"] for command in inbox.commands]


def test_a_hunt_that_found_nothing_is_repeated_once_over_more_steps() -> None:
    clock, inbox = Clock(), Inbox()
    hunt = LeakHunt(inbox, lambda: True, clock)
    hunt.on_leak(a_leak(), None)
    for clock.s in (1.0, AGAIN_AFTER_S - 1, AGAIN_AFTER_S + 1, 5 * AGAIN_AFTER_S):
        hunt.on_leak(a_leak(), NOTHING)
    assert requested(inbox) == [STEPS, STEPS_AGAIN]


def test_a_hunt_is_about_the_growth_of_the_verdict() -> None:
    inbox = Inbox()
    LeakHunt(inbox, lambda: True, Clock()).on_leak(a_leak()._replace(bytes_per_step=8_000.0), None)
    assert [json.loads(command.payload)["bytes_per_step"] for command in inbox.commands] == [8_000.0]


@pytest.mark.parametrize(
    "result", [None, NOTHING._replace(has_site=True), NOTHING._replace(refusal="Train without compile.")]
)
def test_a_hunt_that_goes_on_was_refused_or_found_a_line_is_not_repeated(result: HuntResult | None) -> None:
    clock, inbox = Clock(), Inbox()
    hunt = LeakHunt(inbox, lambda: True, clock)
    hunt.on_leak(a_leak(), None)
    clock.s = AGAIN_AFTER_S + 1
    hunt.on_leak(a_leak(), result)
    assert requested(inbox) == [STEPS]


def test_a_line_of_an_earlier_growth_does_not_answer_a_later_one() -> None:
    clock, inbox = Clock(), Inbox()
    hunt = LeakHunt(inbox, lambda: True, clock)
    hunt.on_leak(a_leak(), None)
    clock.s = AGAIN_AFTER_S + 1
    hunt.on_leak(a_leak(since_step=5_000), NOTHING._replace(has_site=True))
    assert requested(inbox) == [STEPS, STEPS_AGAIN]


def doubted() -> LeakRow:
    return a_leak()._replace(verdict=LeakVerdict.WATCH)


def test_growth_that_growing_inputs_may_explain_is_hunted_once() -> None:
    clock, inbox = Clock(), Inbox()
    hunt = LeakHunt(inbox, lambda: True, clock)
    for clock.s in (1.0, 2.0, 5 * AGAIN_AFTER_S):
        hunt.on_leak(doubted(), None if clock.s == 1.0 else NOTHING)
    assert requested(inbox) == [STEPS]


@pytest.mark.parametrize(
    ("result", "steps"),
    [
        (None, [STEPS]),
        (NOTHING, [STEPS, STEPS]),
        (NOTHING._replace(refusal="Train without compile."), [STEPS, STEPS]),
        (NOTHING._replace(has_site=True), [STEPS]),
    ],
)
def test_that_hunt_takes_the_place_of_the_first_of_a_leak_only_if_it_found_a_line(
    result: HuntResult | None, steps: list[int]
) -> None:
    inbox = Inbox()
    hunt = LeakHunt(inbox, lambda: True, Clock())
    hunt.on_leak(doubted(), None)
    hunt.on_leak(a_leak(), result)
    assert requested(inbox) == steps
    assert len({command.command_id for command in inbox.commands}) == len(steps)


def test_the_leak_detector_calls_it_for_as_long_as_the_leak_lasts() -> None:
    clock, inbox, rows = Clock(), Inbox(), list[Row]()
    hunt, readings = LeakHunt(inbox, lambda: True, clock), Readings()
    watch = LeakWatch(
        rows.append,
        lambda: 0,
        lambda: 0,
        LeakDetector(on_cpu=False),
        readings,
        lambda: HostReading(None, None),
        Limits,
        on_leak=hunt.on_leak,
        hunt_result=lambda: NOTHING,
    )
    for step in range(1, 401):
        readings.add_rows([a_row(step, GIB + step * MIB, 2 * GIB + step * MIB)])
        clock.s = step * 5.0
        if step % 10 == 0:
            watch.judge()
    assert requested(inbox) == [STEPS, STEPS_AGAIN]


@pytest.mark.parametrize("retained_slope", [0, MIB // 4, MIB])
def test_a_leak_beside_growing_inputs_is_one_if_its_steps_retain_it(retained_slope: int) -> None:
    """Live memory grows by 1 MiB per step, and so does what a step needs."""
    rows, hunted = list[Row](), list[LeakRow]()
    readings, results = Readings(), list[HuntResult]()
    steps = iter(range(1, 401))

    def read_host() -> HostReading:
        return HostReading(None, 0, forward_end_bytes=(step * MIB,))

    def hunt(growth: LeakRow, _result: HuntResult | None) -> None:
        hunted.append(growth)
        results.append(NOTHING._replace(step=growth.step, retained_bytes_per_step=retained_slope))

    watch = LeakWatch(
        rows.append,
        lambda: step,
        lambda: step,
        LeakDetector(on_cpu=True),
        readings,
        read_host,
        Limits,
        on_leak=hunt,
        hunt_result=lambda: results[0] if results else None,
    )
    for step in steps:
        live_bytes = GIB + step * MIB
        readings.add_rows(
            [a_row(step, live_bytes, rss=live_bytes)._replace(peak_allocated_bytes=live_bytes + step * MIB)]
        )
        watch.check()
    assert hunted[0].verdict == LeakVerdict.WATCH
    events = [row for row in rows if isinstance(row, EventRow)]
    assert [event.kind for event in events] == ([EventKind.LEAK] if retained_slope == MIB else [])

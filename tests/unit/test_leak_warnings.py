"""The events of the leak watch: which verdicts begin a warning, and which withdraw it."""

import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Limits
from harness.records.memory import LeakRow, LeakSeries, LeakVerdict
from harness.records.run import EventKind, EventRow, Severity
from harness.store.inserts import Row
from harness.watch.jobs.leaks import HostReading, LeakWatch, Readings


class ScriptedBench:
    """A watch whose detector says what a test gives it."""

    def __init__(self) -> None:
        self.events: list[EventRow] = []
        self.rows: list[LeakRow] = []
        detector = LeakDetector(on_cpu=True)
        detector.judge = lambda *_: self.rows  # type: ignore[method-assign]  # its verdicts are given
        self.watch = LeakWatch(
            self.put, lambda: 0, lambda: 0, detector, Readings(), lambda: HostReading(None, None), Limits
        )

    def put(self, row: Row) -> None:
        if isinstance(row, EventRow):
            self.events.append(row)

    def judge(
        self, step: int, *verdicts: tuple[LeakSeries, LeakVerdict, int], limit: float | None = None
    ) -> None:
        """Judge at `step`: each a series, its verdict and its first step; `limit` is the detection limit."""
        self.rows = [
            LeakRow(0, step, series, verdict, since, 1e6, 1e6, 1e6, 10**8, None, limit, "It grows.", None)
            for series, verdict, since in verdicts
        ]
        self.watch.judge()

    @property
    def warnings(self) -> list[str]:
        return [event.label for event in self.events if event.severity == Severity.WARNING]


def test_one_mistake_that_shows_in_three_series_is_one_warning() -> None:
    text = ScriptedBench()
    allocated = (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 6)
    text.judge(300, allocated)
    text.judge(400, allocated, (LeakSeries.HOST, LeakVerdict.LEAK, 6))
    text.judge(500, allocated, (LeakSeries.FRAGMENTATION, LeakVerdict.LEAK, 60))
    assert text.warnings == ["leak"]


def test_a_series_that_is_later_judged_by_its_newer_half_has_no_warning_of_its_own() -> None:
    # As of a script that appends a list of floats in each step.
    text, allocated = ScriptedBench(), (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 8)
    text.judge(385, allocated, (LeakSeries.HOST, LeakVerdict.WATCH, 8))
    text.judge(1169, allocated, (LeakSeries.HOST, LeakVerdict.WATCH, 793))
    text.judge(1624, allocated, (LeakSeries.HOST, LeakVerdict.LEAK, 793))
    assert text.warnings == ["leak"]


def test_live_tensors_take_the_warning_over_from_what_followed_them() -> None:
    text = ScriptedBench()
    text.judge(300, (LeakSeries.HOST, LeakVerdict.LEAK, 6))
    text.judge(400, (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 6), (LeakSeries.HOST, LeakVerdict.STEADY, 6))
    assert [(event.label, event.severity) for event in text.events] == [
        ("host leak", Severity.WARNING),
        ("leak", Severity.INFO),
    ]


def test_a_second_mistake_that_began_later_is_a_second_warning() -> None:
    text = ScriptedBench()
    text.judge(300, (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 6))
    text.judge(1000, (LeakSeries.HOST, LeakVerdict.LEAK, 600))
    assert text.warnings == ["leak", "host leak"]


def test_what_the_workers_keep_is_a_mistake_of_its_own() -> None:
    text = ScriptedBench()
    text.judge(300, (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 6), (LeakSeries.WORKERS, LeakVerdict.LEAK, 6))
    assert text.warnings == ["leak", "workers leak"]


def test_what_still_grows_when_the_first_is_taken_back_has_the_warning() -> None:
    text = ScriptedBench()
    text.judge(300, (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 6))
    text.judge(400, (LeakSeries.ALLOCATED, LeakVerdict.STEADY, 6), (LeakSeries.HOST, LeakVerdict.LEAK, 6))
    assert text.warnings == ["leak", "host leak"]


@pytest.mark.parametrize(
    ("limit", "kinds"),
    [
        (None, [EventKind.LEAK]),
        (2e6, [EventKind.LEAK]),
        (5e5, [EventKind.LEAK, EventKind.LEAK_CLEARED]),
    ],
)
def test_after_a_change_of_settings_a_leak_is_cleared_only_if_it_would_have_been_detected(
    limit: float | None, kinds: list[EventKind]
) -> None:
    text = ScriptedBench()
    text.judge(300, (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 6))
    text.judge(400, (LeakSeries.ALLOCATED, LeakVerdict.TOO_EARLY, 310))
    text.judge(450, (LeakSeries.ALLOCATED, LeakVerdict.STEADY, 310), limit=limit)
    assert [event.kind for event in text.events] == kinds


def test_a_leak_is_cleared_as_soon_as_the_detection_limit_is_below_its_rate() -> None:
    text = ScriptedBench()
    steady = (LeakSeries.ALLOCATED, LeakVerdict.STEADY, 310)
    text.judge(300, (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 6))
    text.judge(400, steady, limit=1.5e6)
    text.judge(500, steady, limit=0.9e6)
    assert [(event.kind, event.step) for event in text.events][1:] == [(EventKind.LEAK_CLEARED, 500)]


def test_a_leak_that_goes_on_after_a_change_of_settings_has_one_warning() -> None:
    text = ScriptedBench()
    text.judge(300, (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 6))
    text.judge(400, (LeakSeries.ALLOCATED, LeakVerdict.STEADY, 310))
    text.judge(500, (LeakSeries.ALLOCATED, LeakVerdict.LEAK, 310))
    assert text.warnings == ["leak"]

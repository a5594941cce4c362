"""The events of evaluations: one each, or one for several, and never too many to read the others."""

from harness.attach.evaluations import EVENT_NS, Evaluations
from harness.device.testing.device import FakeDevice
from harness.records.run import EventRow
from harness.store.reader import MOST_EVENTS
from harness.watch.memory import MemoryWatch
from tests.train_factories import FakeJournal, a_context

SECOND_NS = 1_000_000_000


def run_for(seconds: int, period_s: int, took_ns: int = SECOND_NS) -> list[EventRow]:
    """Evaluate once per period; return the events."""
    journal, times_s = FakeJournal(), range(0, seconds, period_s)
    now_s = [0]
    context = a_context(journal=journal, clock_ns=lambda: now_s[0] * SECOND_NS)
    evaluations = Evaluations(context, MemoryWatch(context.device))
    for step, now_s[0] in enumerate(times_s, start=1):
        evaluations.add(took_ns, step)
    evaluations.record()
    return [row for row in journal.rows if isinstance(row, EventRow)]


def test_an_evaluation_has_an_event_of_its_own() -> None:
    events = run_for(900, 60)
    assert len(events) == 15
    assert events[3].message == "Evaluation took 1.0 s; it belongs to no step."


def test_evaluations_that_follow_each_other_fast_have_one_event() -> None:
    events = run_for(60, 2)
    assert len(events) == 7
    assert (
        events[1].message
        == f"{EVENT_NS // SECOND_NS // 2} evaluations took 5.0 s together; they belong to no step."
    )


def test_a_run_of_a_month_leaves_room_for_other_events() -> None:
    month_s = 30 * 24 * 3_600
    events = run_for(month_s, 15)
    assert len(events) < MOST_EVENTS // 2
    assert (
        sum(float(event.detail.split(": ")[1].rstrip("}")) for event in events) == month_s // 15 * SECOND_NS
    )


def test_what_waits_at_the_end_is_recorded() -> None:
    assert [event.step for event in run_for(25, 4)] == [1, 4, 7]


def test_an_event_that_waits_has_the_step_and_time_of_its_last_evaluation() -> None:
    journal, now_s = FakeJournal(), [0]
    context = a_context(journal=journal, clock_ns=lambda: now_s[0] * SECOND_NS)
    evaluations = Evaluations(context, MemoryWatch(context.device))
    durations_ns = [SECOND_NS, 0, SECOND_NS, 0, 0, 0]
    for step, (now_s[0], duration_ns) in enumerate(zip(range(0, 24, 4), durations_ns, strict=True), start=1):
        evaluations.add(duration_ns, step)
    events = [(row.step, row.t_ns // SECOND_NS) for row in journal.rows if isinstance(row, EventRow)]
    assert events == [(1, 0), (3, 8)]


class PeakDevice(FakeDevice):
    """Each peak is twice as high as the one before."""

    peak_bytes = 100 << 20

    def begin_peak(self) -> int:
        self.peak_bytes *= 2
        return self.peak_bytes


def test_an_event_has_the_highest_memory_of_its_evaluations() -> None:
    journal = FakeJournal()
    evaluations = Evaluations(a_context(journal=journal), MemoryWatch(PeakDevice()))
    for step, batches in ((10, 2), (20, 0)):
        for _ in range(batches):
            evaluations.left_out(SECOND_NS)
        evaluations.add(SECOND_NS, step)
        evaluations.record()
    first, second = [row for row in journal.rows if isinstance(row, EventRow)]
    assert first.message == (
        "Evaluation took 1.0 s; it belongs to no step. The memory reached 400 MiB meanwhile."
    )
    assert second.message == "Evaluation took 1.0 s; it belongs to no step."

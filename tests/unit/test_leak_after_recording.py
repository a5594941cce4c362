"""Test that the hunt for a leak, which restarts the series of the host, does not make a second leak of it."""

import random

import pytest

from harness.analysis.leak.detector import LeakDetector
from harness.analysis.leak.headroom import Limits
from harness.records.memory import LeakSeries, LeakVerdict
from harness.records.run import EventKind, EventRow, Severity, StepFlag
from harness.store.inserts import Row
from harness.watch.jobs.leaks import HostReading, LeakWatch, Readings
from tests.leak_factories import GIB, a_row

KIB = 1024
HUNTED = range(110, 121)


def warnings(objects_from: int) -> list[str]:
    """The different labels of the warnings on a script that keeps 77 KiB per step in the heap and, from a
    step on, 210 KiB of small objects outside of it, beside holes of which more or less is resident."""
    chance = random.Random(objects_from)
    events: list[EventRow] = []
    step = 0

    def put(row: Row) -> None:
        if isinstance(row, EventRow) and row.kind == EventKind.LEAK and row.severity == Severity.WARNING:
            events.append(row)

    def read_host() -> HostReading:
        return HostReading(None, 8 * 2**20)

    readings = Readings()
    watch = LeakWatch(
        put,
        lambda: step * 100_000_000,
        lambda: step,
        LeakDetector(on_cpu=True),
        readings,
        read_host,
        lambda: Limits(None, 20 * GIB),
    )
    for step in range(1, 500):
        kept = GIB + step * 77 * KIB
        outside = max(0, step - objects_from) * 210 * KIB + chance.randrange(16 * 2**20)
        row = a_row(step, kept, rss=kept + GIB + outside)
        readings.add_rows([row._replace(flags=int(StepFlag.PROFILED)) if step in HUNTED else row])
        watch.check()
    return list(dict.fromkeys(event.label for event in events))


@pytest.mark.parametrize(("objects_from", "labels"), [(0, ["leak"]), (300, ["leak", "host leak"])])
def test_growth_that_went_on_over_a_recording_is_one_leak(objects_from: int, labels: list[str]) -> None:
    assert warnings(objects_from) == labels


@pytest.mark.parametrize("read_every", [3, 12])
@pytest.mark.parametrize(("ends_at", "verdict"), [(10_000, LeakVerdict.LEAK), (111, LeakVerdict.STEADY)])
def test_a_leak_by_the_memory_of_the_process_outlasts_a_recording(
    ends_at: int, verdict: LeakVerdict, read_every: int
) -> None:
    """Live memory is read in every third step only, or more rarely, so that it has too few readings for a
    leak, or for any verdict. Growth that has ended is none."""
    detector = LeakDetector(on_cpu=True)
    for step in range(1, 250):
        kept = GIB + min(step, ends_at) * 4096 * KIB
        row = a_row(step, kept, rss=kept + GIB)
        flags = int(StepFlag.PROFILED) if step in HUNTED else row.flags
        is_read = step % read_every == 0
        detector.add_steps([row._replace(flags=flags, allocated_bytes=kept if is_read else None)])
        if step == HUNTED.start - 1:
            assert _verdict(detector) is LeakVerdict.LEAK
        if step >= HUNTED.stop and ends_at > step:
            assert _verdict(detector) is LeakVerdict.LEAK
    assert _verdict(detector) is verdict


@pytest.mark.parametrize(("ends_at", "verdict"), [(10_000, LeakVerdict.LEAK), (111, LeakVerdict.STEADY)])
def test_a_leak_on_the_host_outlasts_a_recording(ends_at: int, verdict: LeakVerdict) -> None:
    detector = LeakDetector(on_cpu=False)
    for step in range(1, 250):
        row = a_row(step, rss=GIB + min(step, ends_at) * 4096 * KIB)
        detector.add_steps([row._replace(flags=int(StepFlag.PROFILED)) if step in HUNTED else row])
        if HUNTED.start - 1 <= step < ends_at:
            assert _verdict(detector, LeakSeries.HOST) is LeakVerdict.LEAK
    assert _verdict(detector, LeakSeries.HOST) is verdict


def _verdict(detector: LeakDetector, series: LeakSeries = LeakSeries.ALLOCATED) -> LeakVerdict:
    return next(LeakVerdict(row.verdict) for row in detector.judge(0) if row.series == series)

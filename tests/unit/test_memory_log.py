"""Test what a log says about memory is read back as it was written, and an old log says nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.records.memory import LeakRow, LeakSeries, LeakVerdict, MemorySampleRow
from harness.store.appender import LogAppender
from harness.store.memory_log import MemoryLog
from harness.store.querying import Queries
from harness.store.reader import LogReader
from tests.store_factories import a_run, a_step, write_log


def a_leak(step: int, series: LeakSeries, verdict: LeakVerdict) -> LeakRow:
    return LeakRow(step, step, series, verdict, 1, None, None, None, None, None, None, "So.", None)


def a_sample(seq: int, step: int, unused: int) -> MemorySampleRow:
    return MemorySampleRow(seq, seq, step, 100, 100 + unused, *(None,) * 8)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[LogReader]:
    steps = [a_step(step)._replace(alloc_retries=None if step == 3 else step // 2) for step in range(1, 9)]
    leaks = [
        a_leak(2, LeakSeries.ALLOCATED, LeakVerdict.WATCH),
        a_leak(4, LeakSeries.HOST, LeakVerdict.STEADY),
        a_leak(6, LeakSeries.ALLOCATED, LeakVerdict.LEAK),
    ]
    samples = [a_sample(seq, 1 + seq // 4, unused=7 * (seq == 13)) for seq in range(32)]
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        appender.append(steps, [*leaks, *samples])
    with LogReader(tmp_path / "log.sqlite3") as opened:
        yield opened


def test_the_newest_verdict_on_each_series_stands(reader: LogReader) -> None:
    assert [(row.series, row.verdict) for row in reader.memory.current_leaks()] == [
        ("host", "steady"),
        ("allocated", "leak"),
    ]


def test_retries_are_told_for_the_steps_that_told_them(reader: LogReader) -> None:
    assert reader.memory.retries([1, 3, 4, 8, 99]) == [(1, 0), (4, 2), (8, 4)]
    assert reader.memory.retries([]) == []


def test_thinned_out_samples_keep_the_one_with_most_unused(reader: LogReader) -> None:
    samples = reader.memory.samples(1, 8, max_points=9)
    assert len(samples) <= 9
    assert 13 in [sample.seq for sample in samples]
    assert [sample.seq for sample in reader.memory.samples(2, 2)] == [4, 5, 6, 7]


def test_a_log_of_the_first_version_has_none_of_it(tmp_path: Path) -> None:
    closed = Queries(write_log(tmp_path / "log.sqlite3"))
    closed.close()  # From here on every query is an error.
    old = MemoryLog(closed, 1)
    assert not [*old.samples(0, 9), *old.snapshots(), *old.current_leaks(), *old.oom_reports()]
    assert not [*old.retries([1]), *old.modules(1), *old.allocations(1)]
    assert old.latest_sample() is None
    assert old.stamp() == ()

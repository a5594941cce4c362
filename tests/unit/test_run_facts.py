"""Test what a log says about its run as a whole."""

from pathlib import Path

import pytest

from harness.store.appender import LogAppender
from harness.store.reader import LogReader, StepExtent
from harness.supervisor.logs import read_log
from tests.store_factories import a_run, a_step, write_log

MIB = 2**20


@pytest.mark.parametrize(("peak", "level", "message"), [(9, 5, 9), (9, 20, 20), (None, 20, None)])
def test_the_highest_peak_is_never_below_what_was_allocated(
    tmp_path: Path, peak: int | None, level: int, message: int | None
) -> None:
    sized = [
        a_step(1)._replace(
            peak_allocated_bytes=None if peak is None else peak * MIB, allocated_bytes=4 * MIB
        ),
        a_step(2)._replace(peak_allocated_bytes=None, allocated_bytes=level * MIB),
    ]
    facts = read_log(write_log(tmp_path / "log.sqlite3", sized))
    assert facts.peak_allocated_bytes == (None if message is None else message * MIB)


def test_steps_that_arrive_while_it_is_read_are_not_missing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extent = LogReader.extent
    with LogAppender(tmp_path / "log.sqlite3", a_run("run", "mlp-1")) as appender:
        appender.append([a_step(step) for step in range(1, 11)])

        def extent_before_more(reader: LogReader) -> StepExtent:
            steps = extent(reader)
            monkeypatch.setattr(LogReader, "extent", extent)
            appender.append([a_step(step) for step in range(11, 21)])
            return steps

        monkeypatch.setattr(LogReader, "extent", extent_before_more)
        first = read_log(tmp_path / "log.sqlite3")
        assert (first.logged_step, first.logged_steps, first.last_step) == (10, 10, 10)
        appender.append([a_step(21)])
        second = read_log(tmp_path / "log.sqlite3", first)
        assert (second.logged_step, second.logged_steps, second.last_step) == (21, 21, 21)

"""Test what the disk, or the log itself, refuses: kept, or counted and named; the log stays sound."""

import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HomeError
from harness.records.run import AckRow, EventKind, RunState, StepRow
from harness.store import mounts
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.store.safe_logger import SafeLogger
from harness.store.writer import LogWriter
from tests.store_factories import a_host_sample, a_run, a_step, an_event, steps
from tests.supervision import until
from tests.writer_factories import SOON_S, Source, a_writer, fill_disk, free_disk, run_script

_LIMITED = """
fed.extend(steps(1, 100))
assert writer.flush(10)
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, unlimited[1]))
fed.extend(steps(101, 3_000))
while not said:
    time.sleep(0.01)
assert "The log cannot be written" in said[0]
assert not writer.put_durable(an_event(), timeout_s=0.1)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
assert writer.flush(10)
assert writer.close()
with LogReader(path) as reader:
    reader.check()
    assert reader.extent() == (1, 3_000, 3_000)
    assert len(reader.events()) == 1
"""

_LIMITED_FOR_LONG = """
from harness.store import log_keeper
attempts, begin_anew = [], log_keeper.begin_anew
def counting(*arguments):
    attempts.append(arguments)
    return begin_anew(*arguments)
log_keeper.begin_anew = counting
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, unlimited[1]))
fed.extend(steps(1, 3_000))
while len(attempts) < 4:
    time.sleep(0.01)
assert [text.partition(" (")[0] for text in said] == [
    "The log cannot be written", "No new log could be created"
], said
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
assert writer.close()
"""


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def test_rows_that_no_log_can_hold_are_left_out_and_named(path: Path, source: Source) -> None:
    bad = a_step(5)._replace(step_ns="five")  # type: ignore[arg-type]
    huge = a_step(6)._replace(allocated_bytes=2**70)
    with a_writer(path, source) as writer:
        source.add([*steps(1, 4), bad, huge, *steps(7, 9), a_step(3)])
        writer.put(an_event()._replace(message=None))  # type: ignore[arg-type]
        writer.put(an_event("fine"))
        assert writer.flush(SOON_S)
    with LogReader(path) as reader:
        assert [row.step for row in reader.last_steps(20)] == [1, 2, 3, 4, 7, 8, 9]
        events = [event for _, event in reader.events()]
    assert [event.kind for event in events] == [EventKind.WARNING, EventKind.GAP]
    unusable = json.loads(events[1].detail)["unusable"]
    assert [text.split(":")[0] for text in unusable] == ["step 5", "step 6", "step 3", "EventRow"]


def test_a_full_disk_loses_nothing_that_fits_the_buffer(
    path: Path, source: Source, logged: list[str]
) -> None:
    with a_writer(path, source) as writer:
        source.add(steps(1, 50))
        assert writer.flush(SOON_S)
        fill_disk(writer)
        source.add(steps(51, 2_000))
        until(lambda: logged, bool)
        assert not writer.put_durable(an_event("while full"), timeout_s=0.05)
        assert not writer.set_state(RunState.OUT_OF_MEMORY, "No memory left.", timeout_s=0.05)
        with LogReader(path) as reader:
            assert reader.extent().last == 50
        free_disk(writer)
        assert writer.flush(SOON_S)
        with LogReader(path) as reader:
            assert [row.step for row in reader.steps(1, 3_000)] == list(range(1, 2_001))
            assert reader.run().state == RunState.OUT_OF_MEMORY
            assert [event.kind for _, event in reader.events()] == ["warning", "state"]
            assert sum(reader.series(1, 2_000, 10).column("rows")) == 2_000
    assert [message.split("(")[0] for message in logged] == [
        "The log cannot be written ",
        "The log is written again.",
    ]


class Closed(logging.Handler):
    """A handler with a closed stream, as Python's own where a script has closed standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ValueError("I/O operation on closed file")


def test_a_message_that_no_handler_takes_does_not_end_the_log(
    path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [Closed()])
    with a_writer(path, source) as writer:
        assert writer.flush(SOON_S)
        fill_disk(writer)
        source.add(steps(1, 2_000))
        assert not writer.put_durable(an_event("while full"), timeout_s=0.05)
        free_disk(writer)
        assert writer.flush(SOON_S)
    with LogReader(path) as reader:
        assert reader.extent().last == 2_000
        assert [event.message for _, event in reader.events()] == ["while full"]


class Collecting(logging.Handler):
    """A handler that keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_a_message_names_the_module_that_has_written_it(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = Collecting()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    SafeLogger(logging.getLogger(__name__)).warning("retrying")
    [record] = handler.records
    assert record.filename == Path(__file__).name


@pytest.mark.slow
def test_a_disk_full_for_long_drops_the_oldest_steps_and_counts_them(path: Path, source: Source) -> None:
    with a_writer(path, source, max_pending_steps=100) as writer:
        assert writer.flush(SOON_S)
        fill_disk(writer)
        for start in range(1, 1_001, 100):
            source.add(steps(start, start + 99))
            while source.count():
                writer.flush(0.02)
        for index in range(6_000):
            writer.put(a_host_sample(index, 1))
        retained = [an_event(f"event {index}") for index in range(1_500)]
        for event in retained:
            writer.put(event)
        writer.flush(0.2)
        free_disk(writer)
        assert writer.flush(SOON_S)
        with LogReader(path) as reader:
            assert [row.step for row in reader.steps(1, 3_000)] == list(range(901, 1_001))
            events = [event for _, event in reader.events()]
            host = reader.latest_host_sample()
    assert events[:-1] == retained
    gap = events[-1]
    assert gap.kind == EventKind.GAP
    assert (gap.step, gap.t_ns) == (900, 42)
    assert json.loads(gap.detail)["dropped_steps"] == 900
    assert json.loads(gap.detail)["dropped_samples"] == 2_000
    assert gap.message == (
        "The log is incomplete: 900 steps up to step 900 and 2,000 samples could not be written in time and "
        "were dropped."
    )
    assert host is not None
    assert host.seq == 5_999


@pytest.mark.slow
def test_closing_on_a_full_disk_ends_in_time_and_leaves_a_sound_log(
    path: Path, source: Source, logged: list[str]
) -> None:
    writer = a_writer(path, source)
    source.add(steps(1, 10))
    assert writer.flush(SOON_S)
    fill_disk(writer)
    source.add(steps(11, 5_000))
    assert writer.close(timeout_s=2.0)
    assert any("4,990 steps and 0 other rows are lost" in message for message in logged)
    with LogReader(path) as reader:
        reader.check()
        assert reader.extent().last == 10


def test_a_feed_that_breaks_does_not_take_the_log_with_it(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:
        source.add(steps(1, 3))
        assert writer.flush(SOON_S)
        source.error = RuntimeError("CUDA error: an illegal memory access was encountered")
        assert writer.flush(SOON_S)
        assert writer.finish(RunState.FAILED, "CUDA error.", ended_unix_ns=5)
    with LogReader(path) as reader:
        labels = [event.label for _, event in reader.events()]
        assert labels == ["no more steps", "failed"]
        assert reader.run().state == RunState.FAILED


def test_a_process_short_of_memory_keeps_its_log(
    path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a memory cap the writer's own small allocations fail while training holds everything."""
    append, feed = LogAppender.append, source.__call__
    short_of = {"append": 3, "feed": 3}

    def scarce(what: str) -> None:
        if short_of[what]:
            short_of[what] -= 1
            raise MemoryError

    def append_or_fail(self: LogAppender, *args: Any, **kwargs: Any) -> None:
        scarce("append")
        append(self, *args, **kwargs)

    def feed_or_fail() -> list[StepRow]:
        scarce("feed")
        return feed()

    monkeypatch.setattr(LogAppender, "append", append_or_fail)
    with LogWriter(path, a_run(), feed_or_fail, lambda: 42, 0.005) as writer:
        source.add(steps(1, 20))
        writer.put(AckRow("one", "applied", 1, 5, "done"))
        assert writer.finish(RunState.OUT_OF_MEMORY, "Out of memory.", 7, timeout_s=SOON_S)
    assert short_of == {"append": 0, "feed": 0}
    with LogReader(path) as reader:
        assert reader.run().state == RunState.OUT_OF_MEMORY
        assert [ack.command_id for ack in reader.acks()] == ["one"]
        assert reader.extent().steps == 20


def test_a_second_run_is_never_written_into_a_log(path: Path, source: Source) -> None:
    a_writer(path, source).close()
    with pytest.raises(HomeError, match="already contains a run"):
        a_writer(path, source)


def test_a_log_on_a_network_file_system_is_refused(
    path: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("30 1 0:50 / / rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(mounts, "_MOUNTINFO", table)
    with pytest.raises(HomeError, match=r"network file system \(nfs4\).*--home"):
        a_writer(path, source)
    assert not path.exists()


@pytest.mark.parametrize("name", ["missing/log.sqlite3", "a_file/log.sqlite3"])
def test_a_log_that_cannot_be_begun_is_a_home_error(tmp_path: Path, source: Source, name: str) -> None:
    (tmp_path / "a_file").touch()
    with pytest.raises(HomeError, match="could not be created"):
        a_writer(tmp_path / name, source)


def test_a_batch_that_fails_leaves_nothing_behind(path: Path) -> None:
    with LogAppender(path, a_run()) as appender:
        appender.append(steps(0, 6))
        with pytest.raises(sqlite3.IntegrityError):
            appender.append([*steps(7, 30), a_step(7)], [an_event()])
        appender.append(steps(7, 63))
    with LogReader(path) as reader:
        assert reader.extent() == (0, 63, 64)
        assert reader.events() == []
        assert reader.series(0, 63, 1).column("rows") == [64]


def test_a_file_that_may_not_grow_is_an_io_error_that_heals(path: Path) -> None:
    done = run_script(_LIMITED, path)
    assert done.returncode == 0, done.stderr


def test_an_outage_is_reported_once_however_often_a_new_log_is_tried(path: Path) -> None:
    done = run_script(_LIMITED_FOR_LONG, path)
    assert done.returncode == 0, done.stderr

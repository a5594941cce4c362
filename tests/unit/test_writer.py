"""The writer: everything arrives, nothing waits, and what the disk refuses is kept or counted."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.errors import HomeError
from harness.records import AckRow, EventKind, ModelSizeRow, RunState, StepRow
from harness.store import mounts
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.store.writer import LogWriter
from tests.store_factories import (
    a_device_sample,
    a_host_sample,
    a_run,
    a_settings_row,
    a_step,
    an_event,
    steps,
)

_SOON_S = 10.0


class Source:
    """Feeds a writer with whatever was put in."""

    def __init__(self) -> None:
        self._steps: deque[StepRow] = deque()
        self.error: RuntimeError | None = None

    def add(self, rows: Sequence[StepRow]) -> None:
        self._steps.extend(rows)

    def __call__(self) -> list[StepRow]:
        if self.error is not None:
            raise self.error
        found = []
        while self._steps:
            found.append(self._steps.popleft())
        return found


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def _writer(path: Path, source: Source, max_pending_steps: int = 20_000) -> LogWriter:
    return LogWriter(path, a_run(), source, lambda: 42, 0.005, max_pending_steps)


def _connection(writer: LogWriter) -> sqlite3.Connection:
    connection = writer._appender._connection
    assert connection is not None
    return connection


def _fill_disk(writer: LogWriter) -> None:
    """From now on the file may not grow: SQLite itself says that the disk is full."""
    _connection(writer).execute("PRAGMA max_page_count = 1")


def _free_disk(writer: LogWriter) -> None:
    _connection(writer).execute("PRAGMA max_page_count = 1000000")


def test_every_kind_of_row_can_be_read_back(path: Path, source: Source) -> None:
    ack = AckRow("c1", "applied", 3, 9, "Applied at step 3.")
    device, host = a_device_sample(1, 2), a_host_sample(1, 2)
    with _writer(path, source) as writer:
        source.add(steps(1, 10))
        for row in (an_event(), a_settings_row(), ack, device, host, ModelSizeRow(77)):
            writer.put(row)
        assert writer.flush(_SOON_S)
        with LogReader(path) as reader:
            assert reader.steps(1, 10) == steps(1, 10)
            assert reader.events() == [(1, an_event())]
            assert reader.settings_history() == [a_settings_row()]
            assert reader.acks() == [ack]
            assert reader.latest_device_samples() == [device]
            assert reader.latest_host_sample() == host
            assert reader.run() == a_run()._replace(model_parameters=77)


def test_a_log_is_readable_before_the_first_step(path: Path, source: Source) -> None:
    with _writer(path, source), LogReader(path) as reader:
        assert reader.run() == a_run()
        assert reader.extent() == (None, None, 0)
        assert reader.last_steps(5) == []
        assert reader.series(0, 100).rows == []
        assert reader.devices() == []
        assert reader.latest_host_sample() is None


def test_states_are_in_the_run_and_among_the_events(path: Path, source: Source) -> None:
    with _writer(path, source) as writer:
        assert writer.set_state(RunState.RUNNING, "Training.")
        source.add(steps(1, 3))
        assert writer.flush(_SOON_S)
        assert writer.set_state(RunState.PAUSED, "Paused before step 4.", label="pause")
        assert writer.finish(RunState.FAILED, "It broke.", ended_unix_ns=99)
    with LogReader(path) as reader:
        run = reader.run()
        events = [event for _, event in reader.events()]
    assert (run.state, run.state_message, run.ended_unix_ns) == ("failed", "It broke.", 99)
    assert [event.kind for event in events] == [EventKind.STATE] * 3
    assert [event.label for event in events] == ["running", "pause", "failed"]
    assert [event.severity for event in events] == ["info", "info", "error"]
    assert [event.step for event in events] == [0, 3, 3]


def test_a_durable_row_is_there_when_the_call_returns(path: Path, source: Source) -> None:
    with _writer(path, source) as writer:
        assert writer.put_durable(an_event("out of memory"))
        with LogReader(path) as reader:
            assert [event.message for _, event in reader.events()] == ["out of memory"]
        assert _connection(writer).execute("PRAGMA synchronous").fetchone() == (1,)


def test_the_stamp_changes_with_every_kind_of_row(path: Path, source: Source) -> None:
    rows = (an_event(), a_settings_row(), AckRow("c", "applied", 1, 1, ""), a_device_sample(0, 1))
    with _writer(path, source) as writer, LogReader(path) as reader:
        stamps = {reader.stamp()}
        for row in (*rows, a_host_sample(0, 1)):
            writer.put(row)
            assert writer.flush(_SOON_S)
            stamps.add(reader.stamp())
        source.add(steps(0, 0))
        assert writer.flush(_SOON_S)
        assert reader.stamp() not in stamps
        assert len(stamps) == 6
        assert reader.stamp() == reader.stamp()


def test_a_closed_log_is_one_plain_file(path: Path, source: Source) -> None:
    with _writer(path, source) as writer:
        source.add(steps(1, 100))
    assert writer.close()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with LogReader(path) as reader:
        assert reader.extent() == (1, 100, 100)


def test_a_reader_does_not_keep_the_writer_from_closing(path: Path, source: Source) -> None:
    writer = _writer(path, source)
    with LogReader(path) as reader:
        source.add(steps(1, 10))
        assert writer.close()
        assert reader.extent() == (1, 10, 10)
    with LogReader(path) as reader:
        assert reader.extent() == (1, 10, 10)


def test_rows_that_no_log_can_hold_are_left_out_and_named(path: Path, source: Source) -> None:
    bad = a_step(5)._replace(step_ns="five")  # type: ignore[arg-type]
    huge = a_step(6)._replace(allocated_bytes=2**70)
    with _writer(path, source) as writer:
        source.add([*steps(1, 4), bad, huge, *steps(7, 9), a_step(3)])
        writer.put(an_event()._replace(message=None))  # type: ignore[arg-type]
        writer.put(an_event("fine"))
        assert writer.flush(_SOON_S)
    with LogReader(path) as reader:
        assert [row.step for row in reader.last_steps(20)] == [1, 2, 3, 4, 7, 8, 9]
        events = [event for _, event in reader.events()]
    assert [event.kind for event in events] == [EventKind.WARNING, EventKind.GAP]
    unusable = json.loads(events[1].detail)["unusable"]
    assert [text.split(":")[0] for text in unusable] == ["step 5", "step 6", "step 3", "EventRow"]


def test_a_full_disk_loses_nothing_that_fits_the_buffer(
    path: Path, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    with _writer(path, source) as writer:
        source.add(steps(1, 50))
        assert writer.flush(_SOON_S)
        _fill_disk(writer)
        source.add(steps(51, 2_000))
        assert not writer.put_durable(an_event("while full"), timeout_s=0.05)
        assert not writer.set_state(RunState.OUT_OF_MEMORY, "No memory left.", timeout_s=0.05)
        with LogReader(path) as reader:
            assert reader.extent().last == 50
        _free_disk(writer)
        assert writer.flush(_SOON_S)
        with LogReader(path) as reader:
            assert [row.step for row in reader.steps(1, 3_000)] == list(range(1, 2_001))
            assert reader.run().state == RunState.OUT_OF_MEMORY
            assert [event.kind for _, event in reader.events()] == ["warning", "state"]
            assert sum(reader.series(1, 2_000, 10).column("rows")) == 2_000
    assert [record.message.split("(")[0] for record in caplog.records] == [
        "The log cannot be written ",
        "The log is written again.",
    ]


def test_a_disk_full_for_long_drops_the_oldest_steps_and_counts_them(path: Path, source: Source) -> None:
    with _writer(path, source, max_pending_steps=100) as writer:
        assert writer.flush(_SOON_S)
        _fill_disk(writer)
        for start in range(1, 1_001, 100):
            source.add(steps(start, start + 99))
            writer.flush(0.02)
        for index in range(6_000):
            writer.put(a_host_sample(index, 1))
        kept = [an_event(f"event {index}") for index in range(3_000)]
        for event in kept:
            writer.put(event)
        writer.flush(0.2)
        _free_disk(writer)
        assert writer.flush(_SOON_S)
        with LogReader(path) as reader:
            assert [row.step for row in reader.steps(1, 3_000)] == list(range(901, 1_001))
            events = [event for _, event in reader.events()]
            host = reader.latest_host_sample()
    assert events[:-1] == kept
    gap = events[-1]
    assert gap.kind == EventKind.GAP
    assert (gap.step, gap.t_ns) == (900, 42)
    assert json.loads(gap.detail)["dropped_steps"] == 900
    assert json.loads(gap.detail)["dropped_samples"] == 2_000
    assert gap.message == (
        "Something is missing from the log: the disk did not take 900 steps up to step 900 and 2,000 samples "
        "in time."
    )
    assert host is not None
    assert host.seq == 5_999


def test_closing_on_a_full_disk_ends_in_time_and_leaves_a_sound_log(
    path: Path, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    writer = _writer(path, source)
    source.add(steps(1, 10))
    assert writer.flush(_SOON_S)
    _fill_disk(writer)
    source.add(steps(11, 5_000))
    assert writer.close(timeout_s=0.4)
    assert "4,990 steps and 0 other rows are lost" in caplog.text
    with LogReader(path) as reader:
        reader.check()
        assert reader.extent().last == 10


def test_a_feed_that_breaks_does_not_take_the_log_with_it(path: Path, source: Source) -> None:
    with _writer(path, source) as writer:
        source.add(steps(1, 3))
        assert writer.flush(_SOON_S)
        source.error = RuntimeError("CUDA error: an illegal memory access was encountered")
        assert writer.flush(_SOON_S)
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
        assert writer.finish(RunState.OUT_OF_MEMORY, "Out of memory.", 7, timeout_s=_SOON_S)
    assert short_of == {"append": 0, "feed": 0}
    with LogReader(path) as reader:
        assert reader.run().state == RunState.OUT_OF_MEMORY
        assert [ack.command_id for ack in reader.acks()] == ["one"]
        assert reader.extent().steps == 20


def test_putting_never_waits_for_a_locked_log(path: Path, source: Source) -> None:
    with _writer(path, source) as writer:
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        for index in range(1_000):
            writer.put(an_event(str(index)))
        lock.execute("ROLLBACK")
        lock.close()
        assert writer.flush(_SOON_S)
        with LogReader(path) as reader:
            assert len(reader.events()) == 1_000


def test_many_threads_may_put_at_once(path: Path, source: Source) -> None:
    with _writer(path, source) as writer:

        def put(name: str) -> None:
            for index in range(200):
                writer.put(an_event(f"{name} {index}"))

        threads = [threading.Thread(target=put, args=(str(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.flush(_SOON_S)
        with LogReader(path) as reader:
            messages = [event.message for _, event in reader.events()]
    assert len(set(messages)) == 800
    for name in "0123":
        own = [message for message in messages if message.startswith(f"{name} ")]
        assert own == [f"{name} {index}" for index in range(200)]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_log_alone(path: Path, source: Source) -> None:
    with _writer(path, source) as writer:
        source.add(steps(1, 10))
        assert writer.flush(_SOON_S)
        child = os.fork()
        if child == 0:
            writer.put(an_event("from the child"))
            silent = not writer.flush(5.0) and not writer.finish(RunState.FAILED, "child", 1)
            writer.close()
            del writer
            os._exit(0 if silent else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        source.add(steps(11, 20))
        assert writer.flush(_SOON_S)
        with LogReader(path) as reader:
            reader.check()
            assert reader.extent() == (1, 20, 20)
            assert reader.run().state == RunState.LAUNCHING
            assert reader.events() == []


def test_calls_after_closing_return_at_once(path: Path, source: Source) -> None:
    writer = _writer(path, source)
    writer.close()
    writer.put(an_event())
    assert not writer.flush(5.0)
    assert not writer.put_durable(an_event())
    assert writer.close()


def test_a_second_run_is_never_written_into_a_log(path: Path, source: Source) -> None:
    _writer(path, source).close()
    with pytest.raises(HomeError, match="already holds a run"):
        _writer(path, source)


def test_a_log_on_a_network_file_system_is_refused(
    path: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text("30 1 0:50 / / rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(mounts, "_MOUNTINFO", table)
    with pytest.raises(HomeError, match=r"network file system \(nfs4\).*--home"):
        _writer(path, source)
    assert not path.exists()


@pytest.mark.parametrize("name", ["missing/log.sqlite3", "a_file/log.sqlite3"])
def test_a_log_that_cannot_be_begun_is_a_home_error(tmp_path: Path, source: Source, name: str) -> None:
    (tmp_path / "a_file").touch()
    with pytest.raises(HomeError, match="could not be begun"):
        _writer(tmp_path / name, source)


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


_PRELUDE = """
import resource, sys, time
from pathlib import Path
from harness.store.reader import LogReader
from harness.store.writer import LogWriter
from tests.store_factories import a_run, an_event, steps
path = Path(sys.argv[1])
fed = []
def feed():
    found = list(fed)
    del fed[: len(found)]
    return found
writer = LogWriter(path, a_run(), feed, lambda: 42, 0.005)
"""

_LIMITED = """
fed.extend(steps(1, 100))
assert writer.flush(10)
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, unlimited[1]))
fed.extend(steps(101, 3_000))
assert not writer.put_durable(an_event(), timeout_s=0.1)
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
assert writer.flush(10)
assert writer.close()
with LogReader(path) as reader:
    reader.check()
    assert reader.extent() == (1, 3_000, 3_000)
    assert len(reader.events()) == 1
"""

_FORGOTTEN = """
fed.extend(steps(1, 100))
"""


def _run_script(script: str, path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", _PRELUDE + script, str(path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_file_that_may_not_grow_is_an_io_error_that_heals(path: Path) -> None:
    done = _run_script(_LIMITED, path)
    assert done.returncode == 0, done.stderr
    assert "The log cannot be written" in done.stderr


def test_a_writer_that_nobody_closed_ends_with_its_program(path: Path) -> None:
    assert _run_script(_FORGOTTEN, path).returncode == 0
    with LogReader(path) as reader:
        assert reader.extent() == (1, 100, 100)

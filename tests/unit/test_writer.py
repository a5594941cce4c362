"""The writer: everything arrives, and nothing waits."""

import os
import sqlite3
import threading
from collections import deque
from pathlib import Path

import pytest

from harness.records.run import AckRow, EventKind, ModelSizeRow, RunState
from harness.store.outbox import Outbox
from harness.store.reader import LogReader
from harness.store.writer import LogWriter
from tests.store_factories import a_device_sample, a_host_sample, a_run, a_settings_row, an_event, steps
from tests.writer_factories import SOON_S, Source, a_writer, connection_of, run_script

_FORGOTTEN = """
fed.extend(steps(1, 100))
"""


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def test_every_kind_of_row_can_be_read_back(path: Path, source: Source) -> None:
    ack = AckRow("c1", "applied", 3, 9, "Applied at step 3.")
    device, host = a_device_sample(1, 2), a_host_sample(1, 2)
    with a_writer(path, source) as writer:
        source.add(steps(1, 10))
        for row in (an_event(), a_settings_row(), ack, device, host, ModelSizeRow(77)):
            writer.put(row)
        assert writer.flush(SOON_S)
        with LogReader(path) as reader:
            assert reader.steps(1, 10) == steps(1, 10)
            assert reader.events() == [(1, an_event())]
            assert reader.settings_history() == [a_settings_row()]
            assert reader.acks() == [ack]
            assert reader.latest_device_samples() == [device]
            assert reader.latest_host_sample() == host
            assert reader.run() == a_run()._replace(model_parameters=77)


def test_a_log_is_readable_before_the_first_step(path: Path, source: Source) -> None:
    with a_writer(path, source), LogReader(path) as reader:
        assert reader.run() == a_run()
        assert reader.extent() == (None, None, 0)
        assert reader.last_steps(5) == []
        assert reader.series(0, 100).rows == []
        assert reader.devices() == []
        assert reader.latest_host_sample() is None


def test_states_are_in_the_run_and_among_the_events(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:
        assert writer.set_state(RunState.RUNNING, "Training.")
        source.add(steps(1, 3))
        assert writer.flush(SOON_S)
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


def test_an_end_that_an_event_tells_already_is_no_event_of_its_own(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:
        assert writer.finish(RunState.OUT_OF_MEMORY, "Out of memory.", ended_unix_ns=99, has_event=True)
    with LogReader(path) as reader:
        assert (reader.run().state, reader.run().ended_unix_ns) == ("out_of_memory", 99)
        assert not list(reader.events())


def test_a_durable_row_is_there_when_the_call_returns(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:
        assert writer.put_durable(an_event("out of memory"))
        with LogReader(path) as reader:
            assert [event.message for _, event in reader.events()] == ["out of memory"]
        assert connection_of(writer).execute("PRAGMA synchronous").fetchone() == (1,)


class Together(deque[object]):
    """An inbox of a writer into which nothing comes alone."""

    def append(self, item: object) -> None:
        raise AssertionError(item)


def test_no_poll_comes_between_a_durable_row_and_the_request_to_wait_for_it(
    path: Path, source: Source
) -> None:
    outbox = Outbox()
    outbox.items = Together()
    with LogWriter(path, a_run(), source, lambda: 42, 0.005, outbox=outbox) as writer:
        assert writer.put_durable(an_event("out of memory"))
        assert writer.set_state(RunState.RUNNING, "Training.")
        assert writer.flush(SOON_S)


def test_the_stamp_changes_with_every_kind_of_row(path: Path, source: Source) -> None:
    rows = (an_event(), a_settings_row(), AckRow("c", "applied", 1, 1, ""), a_device_sample(0, 1))
    with a_writer(path, source) as writer, LogReader(path) as reader:
        stamps = {reader.stamp()}
        for row in (*rows, a_host_sample(0, 1)):
            writer.put(row)
            assert writer.flush(SOON_S)
            stamps.add(reader.stamp())
        source.add(steps(0, 0))
        assert writer.flush(SOON_S)
        assert reader.stamp() not in stamps
        assert len(stamps) == 6
        assert reader.stamp() == reader.stamp()


def test_a_closed_log_is_one_plain_file(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:
        source.add(steps(1, 100))
    assert writer.close()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    with LogReader(path) as reader:
        assert reader.extent() == (1, 100, 100)


def test_a_reader_does_not_keep_the_writer_from_closing(path: Path, source: Source) -> None:
    writer = a_writer(path, source)
    with LogReader(path) as reader:
        source.add(steps(1, 10))
        assert writer.close()
        assert reader.extent() == (1, 10, 10)
    with LogReader(path) as reader:
        assert reader.extent() == (1, 10, 10)


def test_putting_never_waits_for_a_locked_log(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        for index in range(1_000):
            writer.put(an_event(str(index)))
        lock.execute("ROLLBACK")
        lock.close()
        assert writer.flush(SOON_S)
        with LogReader(path) as reader:
            assert len(reader.events()) == 1_000


def test_many_threads_may_put_at_once(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:

        def put(name: str) -> None:
            for index in range(200):
                writer.put(an_event(f"{name} {index}"))

        threads = [threading.Thread(target=put, args=(str(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.flush(SOON_S)
        with LogReader(path) as reader:
            messages = [event.message for _, event in reader.events()]
    assert len(set(messages)) == 800
    for name in "0123":
        own = [message for message in messages if message.startswith(f"{name} ")]
        assert own == [f"{name} {index}" for index in range(200)]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_the_log_alone(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:
        source.add(steps(1, 10))
        assert writer.flush(SOON_S)
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
        assert writer.flush(SOON_S)
        with LogReader(path) as reader:
            reader.check()
            assert reader.extent() == (1, 20, 20)
            assert reader.run().state == RunState.LAUNCHING
            assert reader.events() == []


def test_calls_after_closing_return_at_once(path: Path, source: Source) -> None:
    writer = a_writer(path, source)
    writer.close()
    writer.put(an_event())
    assert not writer.flush(5.0)
    assert not writer.put_durable(an_event())
    assert writer.close()


def test_a_writer_that_nobody_closed_ends_with_its_program(path: Path) -> None:
    assert run_script(_FORGOTTEN, path).returncode == 0
    with LogReader(path) as reader:
        assert reader.extent() == (1, 100, 100)

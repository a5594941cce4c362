"""A log with files that are damaged, deleted or replaced under the writer: begun anew, and said."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import LogError
from harness.records.run import AckRow, EventKind, EventRow, RunState
from harness.store.reader import LogReader
from harness.store.writer import LogWriter
from tests.store_factories import (
    a_device_sample,
    a_host_sample,
    a_run,
    a_settings_row,
    an_event,
    steps,
    write_log,
)
from tests.supervision import until
from tests.writer_factories import SOON_S, Source, a_writer, connection_of, fill_disk, run_script

pytestmark = pytest.mark.slow

STEPS = 12_000
_CLOSES_IN_TIME = """
for first in range(1, 6_001, 100):
    fed.extend(steps(first, first + 99))
    assert writer.flush(10)
wal = path.with_name(path.name + "-wal")
for name in (path, wal):
    with name.open("r+b") as file:
        file.write(b"?" * (name.stat().st_size // 2))
writer._keeper._renewals = 3
fed.extend(steps(6_001, 12_000))
began = time.monotonic()
# Nobody closes the writer: the program's end does.
"""


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def _wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _fill(writer: LogWriter, source: Source) -> None:
    """Write a few thousand steps, most of them out of the write-ahead log already."""
    for first in range(1, STEPS + 1, 200):
        source.add(steps(first, first + 199))
        writer.put(a_device_sample(first, first))
        writer.put(a_host_sample(first, first))
        writer.put(an_event(str(first), first))
        assert writer.flush(SOON_S)
    writer.put(a_settings_row())
    writer.put(AckRow("c1", "applied", 3, 9, "Applied."))
    assert writer.set_state(RunState.RUNNING, "Training.")


def _cut_write_ahead_log(writer: LogWriter, path: Path) -> None:
    os.truncate(_wal(path), 5_000)


def _cut_log(writer: LogWriter, path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _overwrite(writer: LogWriter, path: Path, size: int) -> None:
    """Put noise over the log, and have SQLite read it from the disk again."""
    connection_of(writer).execute("PRAGMA wal_checkpoint(PASSIVE)")
    connection_of(writer).execute("PRAGMA shrink_memory")
    with path.open("r+b") as file:
        file.write(random.Random(1).randbytes(size))


def _overwrite_half(writer: LogWriter, path: Path) -> None:
    _overwrite(writer, path, path.stat().st_size // 2)


def _overwrite_middle(writer: LogWriter, path: Path) -> None:
    connection_of(writer).execute("PRAGMA wal_checkpoint(PASSIVE)")
    connection_of(writer).execute("PRAGMA shrink_memory")
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(random.Random(1).randbytes(size // 3))


def _overwrite_header(writer: LogWriter, path: Path) -> None:
    _overwrite(writer, path, 200)


def _gap(path: Path) -> EventRow:
    with LogReader(path) as reader:
        (event,) = [event for _, event in reader.events() if event.kind == EventKind.GAP]
    return event


@pytest.mark.parametrize(
    ("damage", "most_missing"),
    [
        (_cut_write_ahead_log, STEPS // 2),
        (_cut_log, STEPS * 3 // 4),
        (_overwrite_header, 0),
        (_overwrite_middle, STEPS * 3 // 4),
        (_overwrite_half, STEPS),
    ],
)
def test_a_damaged_log_is_begun_anew_with_what_can_be_read(
    path: Path, source: Source, damage: Callable[[LogWriter, Path], None], most_missing: int
) -> None:
    with a_writer(path, source) as writer:
        _fill(writer, source)
        damage(writer, path)
        source.add(steps(STEPS + 1, STEPS + 500))
        until(lambda: writer.flush(SOON_S), bool)
        source.add(steps(STEPS + 501, STEPS + 1_000))
        assert writer.finish(RunState.FINISHED, "Done.", 7)
    gap = _gap(path)
    missing = json.loads(gap.detail)["missing_steps"]
    assert 0 <= missing <= most_missing
    assert gap.label == "new log"
    assert "log.damaged-1.sqlite3" in gap.message
    with LogReader(path) as reader:
        reader.check()
        rows = reader.steps(1, STEPS + 1_000, limit=10**6)
        assert len(rows) == STEPS + 1_000 - missing
        assert [row.step for row in rows[-1_000:]] == list(range(STEPS + 1, STEPS + 1_001))
        drawn = sum(reader.series(1, STEPS + 1_000, 50).column("rows"))
        assert drawn == len(rows)
        assert reader.run().state == RunState.FINISHED
        assert reader.settings_history() == [a_settings_row()]
        assert [ack.command_id for ack in reader.acks()] == ["c1"]
    names = {entry.name for entry in path.parent.iterdir()}
    assert names <= {"log.sqlite3", "log.damaged-1.sqlite3", "log.damaged-1.sqlite3-wal"}


def _delete_all(path: Path) -> None:
    for name in (path, _wal(path), path.with_name(path.name + "-shm")):
        name.unlink()


def _replace(path: Path) -> None:
    write_log(path.with_name("other.sqlite3"), steps(1, 5)).replace(path)


@pytest.mark.parametrize(
    "damage",
    [
        _delete_all,
        pytest.param(Path.unlink, marks=pytest.mark.long),
        pytest.param(lambda path: _wal(path).unlink(), marks=pytest.mark.long),
        _replace,
    ],
)
def test_a_deleted_or_replaced_log_is_written_anew_whole(
    path: Path, source: Source, damage: Callable[[Path], None]
) -> None:
    with a_writer(path, source) as writer:
        _fill(writer, source)
        damage(path)
        source.add(steps(STEPS + 1, STEPS + 100))
        until(lambda: writer.flush(SOON_S) and path.exists() and bool(_events(path)), bool)
    gap = _gap(path)
    assert json.loads(gap.detail)["missing_steps"] == 0
    assert "deleted or replaced" in gap.message
    with LogReader(path) as reader:
        reader.check()
        assert [row.step for row in reader.steps(1, 10**6, 10**6)] == list(range(1, STEPS + 101))
        assert sum(reader.series(1, STEPS + 100, 50).column("rows")) == STEPS + 100
        assert reader.run().state == RunState.RUNNING


def _events(path: Path) -> list[EventRow]:
    """The gaps; none while the log cannot be read."""
    try:
        with LogReader(path) as reader:
            return [event for _, event in reader.events() if event.kind == EventKind.GAP]
    except LogError:
        return []


@pytest.mark.parametrize("is_closed_at_once", [True, False])
def test_a_log_that_follows_its_folder_is_closed_in_its_new_place(
    tmp_path: Path, source: Source, is_closed_at_once: bool
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    place = [before]
    writer = LogWriter(
        before / "log.sqlite3", a_run(), source, lambda: 42, 0.005, locate=lambda: place[0] / "log.sqlite3"
    )
    source.add(steps(1, 100))
    assert writer.flush(SOON_S)
    before.rename(after)
    place[0] = after
    source.add(steps(101, 200))
    assert writer.flush(SOON_S)
    if not is_closed_at_once:
        until(lambda: writer._keeper._path.parent, lambda folder: folder == after)
    source.add(steps(201, 300))
    assert writer.close()
    assert not before.exists()
    assert [entry.name for entry in after.iterdir()] == ["log.sqlite3"]
    with LogReader(after / "log.sqlite3") as reader:
        reader.check()
        assert reader.extent() == (1, 300, 300)
        assert reader.events() == []


def test_a_folder_that_is_gone_is_not_made_again(tmp_path: Path, source: Source) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    gone = False
    writer = LogWriter(
        folder / "log.sqlite3",
        a_run(),
        source,
        lambda: 42,
        0.005,
        locate=lambda: None if gone else folder / "log.sqlite3",
    )
    source.add(steps(1, 100))
    assert writer.flush(SOON_S)
    gone = True
    shutil.rmtree(folder)
    source.add(steps(101, 200))
    writer.flush(0.2)
    assert writer.close()
    assert not folder.exists()


def test_a_log_that_is_damaged_again_and_again_is_given_up(
    path: Path, source: Source, logged: list[str]
) -> None:
    reports: list[tuple[int, str]] = []
    writer = LogWriter(
        path, a_run(), source, lambda: 42, 0.005, report=lambda since, why: reports.append((since, why))
    )
    for number in range(4):
        source.add(steps(number * 1_000 + 1, number * 1_000 + 1_000))
        assert writer.flush(SOON_S)
        os.truncate(_wal(path), 5_000)
        writer.put(an_event(f"after {number}"))
        writer.flush(SOON_S)
    until(lambda: writer._keeper.has_given_up, bool)
    assert not writer.put_durable(an_event("for nobody"))
    assert not writer.finish(RunState.FINISHED, "Done.", 1)
    source.add(steps(4_001, 5_000))
    assert writer.close()
    assert reports[-1][0] > 0
    assert reports[-1][1].startswith("it was given up after 3 new logs")
    assert any("The log is no longer written" in message for message in logged)


def test_a_damaged_log_does_not_keep_a_program_from_ending(path: Path) -> None:
    done = run_script(_CLOSES_IN_TIME, path)
    assert done.returncode == 0, done.stderr


def test_a_full_disk_is_waited_for_and_begins_no_new_log(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:
        source.add(steps(1, 50))
        assert writer.flush(SOON_S)
        fill_disk(writer)
        source.add(steps(51, 2_000))
        for _ in range(20):
            assert not writer.flush(0.02)
        assert writer._keeper._renewals == 0
        connection_of(writer).execute("PRAGMA max_page_count = 1000000")
        assert writer.flush(SOON_S)
    assert [entry.name for entry in path.parent.iterdir()] == ["log.sqlite3"]


def test_text_that_is_no_unicode_costs_its_own_row_alone(path: Path, source: Source) -> None:
    with a_writer(path, source) as writer:
        writer.put(an_event("fine"))
        writer.put(an_event("broken \ud800"))
        assert writer.flush(SOON_S)
        assert writer.set_state(RunState.RUNNING, "Half \udfff.", timeout_s=SOON_S)
        assert writer.set_state(RunState.RUNNING, "Whole.", timeout_s=SOON_S)
    with LogReader(path) as reader:
        assert reader.run().state_message == "Whole."
        kinds = [event.kind for _, event in reader.events()]
    assert kinds == [EventKind.WARNING, EventKind.GAP, EventKind.GAP, EventKind.STATE]

"""Test what a log that anybody may have written can make its reader do: not much, and not for long."""

import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dashboard.data.figures import figures
from harness.demo import write
from harness.errors import LogDamagedError, LogError
from harness.records.run import EventRow, SettingsRow, StepFlag
from harness.store.appender import LogAppender
from harness.store.checked_rows import ValuesError, to_numbers, to_rows
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.opening import Opened, open_reading
from harness.store.querying import Queries
from harness.store.reader import MOST_EVENTS, LogReader
from harness.supervisor import Supervisor
from harness.supervisor.children import note
from tests.store_factories import a_run, a_settings_row, a_step, an_event, steps, write_log

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


@pytest.mark.parametrize("limit", ["query_limit_s", "total_limit_s"])
def test_a_query_that_never_ends_is_ended(limit: str, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.sqlite3", steps(1, 3))
    queries = Queries(path, **{limit: 0.05})
    with pytest.raises(LogError, match="a query took longer than"):
        queries.numbers(ENDLESS)
    if limit == "query_limit_s":
        assert queries.numbers("SELECT max(step) FROM steps") == [(3,)]
    queries.close()


def test_a_journal_that_names_another_file_is_not_rolled_back(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.sqlite3", steps(1, 3))
    journal = tmp_path / "log.sqlite3-journal"
    journal.write_bytes(b"\0" * 600 + bytes.fromhex("d9d505f920a163d7"))
    with pytest.raises(LogError, match="its journal names another file"):
        LogReader(path)
    assert journal.exists()


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 7, 8, 9, 300, 4_100, 17_000])
def test_the_highest_value_is_that_of_all_steps(last: int, tmp_path: Path) -> None:
    chance = random.Random(last)
    rows = [
        a_step(step)._replace(peak_allocated_bytes=chance.randrange(10**9), peak_reserved_bytes=None)
        for step in range(1, last + 1)
        if step % 5 or step == last
    ]
    path = write_log(tmp_path / "log.sqlite3", rows)
    with LogReader(path) as reader:
        result = reader.highest(last, ("peak_allocated_bytes", "peak_reserved_bytes"))
    assert result == (max(row.peak_allocated_bytes or 0 for row in rows), None)


def test_flagged_steps_come_as_blocks(tmp_path: Path) -> None:
    flags = {3: StepFlag.TRANSITION, 4: StepFlag.TRANSITION, 5: StepFlag.PROFILED, 9: StepFlag.PROFILED}
    rows = [a_step(step)._replace(flags=flags.get(step, StepFlag.WARM_UP)) for step in range(1, 12)]
    with LogReader(write_log(tmp_path / "log.sqlite3", rows)) as reader:
        assert reader.flagged(1, 11, StepFlag.TRANSITION | StepFlag.PROFILED) == [(3, 5), (9, 9)]
        assert reader.flagged(4, 8, StepFlag.TRANSITION) == [(4, 4)]


def test_of_many_events_the_newest_are_read(tmp_path: Path) -> None:
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as appender:
        appender.append(rows=[an_event(step=number) for number in range(MOST_EVENTS + 500)])
    with LogReader(tmp_path / "log.sqlite3") as reader:
        result = reader.events()
    assert len(result) == MOST_EVENTS
    assert [result[0][1].step, result[-1][1].step] == [500, MOST_EVENTS + 499]


def test_values_of_another_type_are_named_by_their_column() -> None:
    good = tuple(an_event()._replace(kind="warning", severity="info"))  # As SQLite returns them.
    assert to_rows(EventRow, [good]) == [an_event()]
    for at, value, reason in (
        (0, "x", "t_ns has a value of the kind str"),
        (4, None, "label has a value of the kind NoneType"),
    ):
        with pytest.raises(ValuesError, match=reason):
            to_rows(EventRow, [good, (*good[:at], value, *good[at + 1 :])])
    settings = tuple(a_settings_row())
    for text in ("[1]", "[" * 5_000, "", '{"a": "\\ud800"}'):
        with pytest.raises(ValuesError, match="changed is no JSON object"):
            to_rows(SettingsRow, [settings, (*settings[:4], text, None)])
    long = to_rows(EventRow, [(*good[:5], "x" * 500_000, *good[6:])])
    assert len(long[0].message) == 20_000
    assert to_numbers([(1, None, 2.5)]) == [(1, None, 2.5)]
    with pytest.raises(ValuesError, match="a number was expected"):
        to_numbers([(1,), (b"x",)])


def test_texts_of_one_query_have_a_limit() -> None:
    long = tuple(an_event("x" * 1_000_000)._replace(kind="warning", severity="info"))
    with pytest.raises(ValuesError, match="its texts have more than"):
        to_rows(EventRow, [long] * 40)


class Counts:
    """Counts how often logs are opened, and how many queries are made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opens = self.queries = 0
        numbers, rows = Queries.numbers, Queries.rows

        def opened(path: Path) -> Opened:
            self.opens += 1
            return open_reading(path)

        def counted(method: Callable[..., object]) -> Callable[..., object]:
            def call(*values: object, **named: object) -> object:
                self.queries += 1
                return method(*values, **named)

            return call

        monkeypatch.setattr("harness.store.querying.open_reading", opened)
        monkeypatch.setattr(Queries, "numbers", counted(numbers))
        monkeypatch.setattr(Queries, "rows", counted(rows))


def test_a_list_of_ended_runs_opens_each_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, counts = Home(tmp_path), Counts(monkeypatch)
    for _ in range(3):
        write("steady", home, steps=40)
    supervisor = Supervisor(home)
    first = supervisor.runs()
    assert (counts.opens, counts.queries) == (3, 3 * 16)
    assert supervisor.runs() == first
    assert counts.opens == 3


def test_a_tick_makes_as_many_queries_however_many_events_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for events in (1, 400):
        folder = RunFolder(tmp_path / str(events))
        folder.path.mkdir()
        with LogAppender(folder.log, a_run()) as appender:
            appender.append(steps(1, 450), [a_settings_row(), *(an_event(step=n + 1) for n in range(events))])
        with monkeypatch.context() as patch:
            counts = Counts(patch)
            assert len(figures(folder, None, None, None, False).events) == events
        made.append(counts.queries)
    assert made[0] == made[1]


@pytest.mark.parametrize("step", [2**63 - 1, 2**40])
def test_a_step_beyond_what_rollups_can_number_is_damage(step: int, tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.sqlite3", steps(1, 3))
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE steps SET step = {step} WHERE step = 3")
    connection.commit()
    connection.close()
    with LogReader(path) as reader, pytest.raises(LogDamagedError, match="its steps are numbered from 1 to"):
        reader.extent()


def test_the_supervisors_notes_do_not_wait_for_the_other_end_of_a_pipe(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    os.mkfifo(folder.output)
    note(folder, "a line that nobody can read")
    assert folder.output_tail() == []

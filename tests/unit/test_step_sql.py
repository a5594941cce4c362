"""Steps are stored with the columns that a run has, and lose nothing when a column appears later."""

from pathlib import Path

from harness.records.run import StepRow
from harness.store.appender import LogAppender
from harness.store.reader import LogReader
from harness.store.step_sql import AbsentColumns
from tests.store_factories import a_run, a_step


def test_columns_that_are_never_measured_are_neither_bound_nor_aggregated() -> None:
    sql = AbsentColumns().sql_for([a_step(1)])
    assert "device_step_ns" not in sql.inserts[1]
    assert "sum(device_step_ns" not in sql.rollups[0]
    assert len(sql.values([a_step(1)])) == sql.inserts[1].count("?") < len(StepRow._fields)


def test_a_column_that_appears_stays() -> None:
    absent = AbsentColumns()
    absent.sql_for([a_step(1), a_step(2)._replace(active_bytes=5)])
    sql = absent.sql_for([a_step(3)])
    assert "active_bytes" in sql.inserts[1]
    assert "sum(active_bytes" in sql.rollups[0]


def test_what_is_measured_late_is_read_back_beside_steps_without_it(tmp_path: Path) -> None:
    early = [a_step(step) for step in range(1, 21)]
    late = [a_step(step)._replace(active_bytes=step, tokens=7) for step in range(21, 101)]
    with LogAppender(tmp_path / "log.sqlite3", a_run()) as log:
        log.append(early)
        log.append(late)
    with LogReader(tmp_path / "log.sqlite3") as reader:
        assert reader.steps(1, 100) == [*early, *late]
        whole = reader.series(1, 100, 1, ["active_bytes"])
    row = dict(zip(whole.columns, whole.rows[0], strict=True))
    assert (row["active_bytes_min"], row["active_bytes_max"]) == (21, 100)
    assert (row["active_bytes_count"], row["active_bytes_sum"]) == (80, sum(range(21, 101)))


def test_a_log_that_goes_on_elsewhere_keeps_the_columns_of_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite3"
    with LogAppender(path, a_run()) as log:
        log.append([a_step(step)._replace(active_bytes=step) for step in range(1, 5)])
        log.discard()
        log.reopen(path)
        log.append([a_step(step) for step in range(5, 9)])
    with LogReader(path) as reader:
        whole = reader.series(0, 7, 1, ["active_bytes"])
    assert dict(zip(whole.columns, whole.rows[0], strict=True))["active_bytes_count"] == 4

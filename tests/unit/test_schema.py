"""The tables fit the rows, and the docs fit the tables."""

import sqlite3
from pathlib import Path

import pytest

from harness.records import flops as flops_records
from harness.records import memory as memory_records
from harness.records import overhead as overhead_records
from harness.records import profile as profile_records
from harness.records import run as records
from harness.records import script as script_records
from harness.records import telemetry as telemetry_records
from harness.store import schema
from harness.store.inserts import insert_sql
from harness.store.reader import LogReader
from harness.store.rollups import DEVICE_ROLLUPS, STEP_ROLLUPS, pieces
from tests.store_factories import a_step

# Columns of older logs that no row has any more.
_UNUSED = {"device_details": {"pcie_sent_bytes", "pcie_received_bytes"}}
_DOCS = Path(__file__).parents[2] / "docs" / "schema.md"


@pytest.fixture
def log() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection, schema.LOG_MIGRATIONS, schema.LOG_APPLICATION_ID)
    return connection


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, str, bool]]:
    rows = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return [(name, kind, bool(required or key)) for _, name, kind, required, _, key in rows]


@pytest.mark.parametrize(
    ("table", "row", "extra"),
    [
        ("run", records.RunRow, 0),
        ("steps", records.StepRow, 0),
        ("device_samples", records.DeviceSampleRow, 0),
        ("host_samples", records.HostSampleRow, 0),
        ("events", records.EventRow, 1),
        ("settings", records.SettingsRow, 0),
        ("acks", records.AckRow, 1),
        ("memory_samples", memory_records.MemorySampleRow, 0),
        ("snapshots", memory_records.SnapshotRow, 0),
        ("allocations", memory_records.AllocationRow, 0),
        ("module_memory", memory_records.ModuleMemoryRow, 0),
        ("leaks", memory_records.LeakRow, 1),
        ("oom_reports", memory_records.OomReportRow, 1),
        ("flops", flops_records.FlopsRow, 0),
        ("own_cost", overhead_records.OverheadRow, 1),
        ("unobserved_steps", overhead_records.UnobservedRow, 0),
        ("profiles", profile_records.ProfileRow, 0),
        ("profile_ops", profile_records.ProfileOpRow, 0),
        ("profile_modules", profile_records.ProfileModuleRow, 0),
        ("profile_stacks", profile_records.ProfileStackRow, 0),
        ("device_details", telemetry_records.DeviceDetailRow, 0),
        ("device_processes", telemetry_records.DeviceProcessRow, 0),
        ("host_details", telemetry_records.HostDetailRow, 0),
        ("scalars", script_records.ScalarRow, 0),
        ("declared_settings", script_records.DeclaredSettingRow, 0),
        ("unavailable_settings", script_records.UnavailableSettingRow, 0),
        ("worker_samples", telemetry_records.WorkerSampleRow, 0),
    ],
)
def test_a_row_binds_to_its_table_as_it_is(
    log: sqlite3.Connection, table: str, row: type, extra: int
) -> None:
    kinds = {int: "INTEGER", float: "REAL", str: "TEXT"}
    expected = []
    for name, annotation in row.__annotations__.items():
        optional = annotation not in kinds
        plain = annotation.__args__[0] if optional else annotation
        expected.append((name, kinds[plain], not optional))
    columns = [column for column in _columns(log, table) if column[0] not in _UNUSED.get(table, ())]
    assert columns[extra:] == expected
    log.close()


def test_rollups_name_only_columns_that_exist(log: sqlite3.Connection) -> None:
    for table, rollup in (("steps", STEP_ROLLUPS), ("device_samples", DEVICE_ROLLUPS)):
        required = {name for name, _, needed in _columns(log, table) if needed}
        values = {name for name, _, _ in _columns(log, table)}
        assert set(rollup.spread) <= values
        assert rollup.always <= required
        assert not rollup.always ^ (required & set(rollup.spread))
    log.close()


def test_rollup_tables_have_the_columns_that_are_written(log: sqlite3.Connection) -> None:
    for table, rollup, keys in (("step_rollups", STEP_ROLLUPS, 1), ("device_rollups", DEVICE_ROLLUPS, 3)):
        assert [name for name, _, _ in _columns(log, table)][keys:] == [p.name for p in pieces(rollup)]
    log.close()


def test_docs_are_generated_from_the_migrations() -> None:
    assert _DOCS.read_text(encoding="utf-8") == schema.render()


def test_docs_name_every_column(log: sqlite3.Connection) -> None:
    text = schema.render()
    tables = [row[0] for row in log.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    for table in tables:
        section = text.split(f"\n### {table}\n")[1].split("\n### ")[0]
        for name, _, _ in _columns(log, table):
            assert f"| `{name}` |" in section
    log.close()


def test_every_table_is_strict(log: sqlite3.Connection) -> None:
    rows = log.execute("SELECT name, strict FROM pragma_table_list WHERE schema = 'main'").fetchall()
    assert {name for name, strict in rows if not strict} == {"sqlite_schema"}
    log.close()


def test_migrating_twice_changes_nothing(log: sqlite3.Connection) -> None:
    before = log.execute("SELECT sql FROM sqlite_schema").fetchall()
    schema.migrate(log, schema.LOG_MIGRATIONS, schema.LOG_APPLICATION_ID)
    assert log.execute("SELECT sql FROM sqlite_schema").fetchall() == before
    assert log.execute("PRAGMA user_version").fetchone() == (len(schema.LOG_MIGRATIONS),)
    log.close()


def test_a_migration_that_fails_leaves_nothing_behind() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    broken = ("CREATE TABLE a (x INTEGER) STRICT;\nCREATE TABLE nonsense (;\n",)
    with pytest.raises(sqlite3.OperationalError):
        schema.migrate(connection, broken, 1)
    assert connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
    assert connection.execute("PRAGMA user_version").fetchone() == (0,)
    connection.close()


def test_a_log_of_the_version_before_the_waits_for_ranks_is_read_and_migrated(tmp_path: Path) -> None:
    path, row = tmp_path / "log.sqlite3", a_step(1)
    connection = sqlite3.connect(path, isolation_level=None)
    schema.migrate(connection, schema.LOG_MIGRATIONS[:9], schema.LOG_APPLICATION_ID)
    marks = ", ".join("?" * len(row[:-2]))
    connection.execute(f"INSERT INTO steps ({', '.join(row._fields[:-2])}) VALUES ({marks})", row[:-2])
    connection.close()
    with LogReader(path) as reader:
        assert reader.last_steps(1) == reader.steps(1, 1) == reader.steps_apart(1, 1, 1) == [row]
        assert list(reader.tables.pages(records.StepRow)) == [[row]]
    connection = sqlite3.connect(path, isolation_level=None)
    schema.migrate(connection, schema.LOG_MIGRATIONS, schema.LOG_APPLICATION_ID)
    sql, later = (
        insert_sql("steps", records.StepRow),
        a_step(2)._replace(all_reduce_wait_ns=7, broadcast_wait_ns=0),
    )
    connection.execute(sql, later)
    connection.close()
    with LogReader(path) as reader:
        assert reader.steps(1, 2) == [row, later]


def test_the_docs_list_every_kind_of_command() -> None:
    kinds = ", ".join(records.CommandKind)
    assert f"| `kind` | TEXT NOT NULL | {kinds} |" in _DOCS.read_text(encoding="utf-8")

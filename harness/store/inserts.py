"""The rows of a log, and the statement that stores each kind."""

from functools import cache
from typing import NamedTuple

from harness.records.flops import FlopsRow
from harness.records.measurement import MeasurementBlockRow, MeasurementEndRow, MeasurementRow
from harness.records.memory import (
    AllocationRow,
    LeakRow,
    MemorySampleRow,
    ModuleMemoryRow,
    OomReportRow,
    SnapshotRow,
)
from harness.records.overhead import OverheadRow, UnobservedRow
from harness.records.profile import ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow
from harness.records.reference import ReferenceRow
from harness.records.run import (
    AckRow,
    DeviceSampleRow,
    EventRow,
    HostSampleRow,
    ModelSizeRow,
    RunRow,
    RunState,
    SettingsRow,
)
from harness.records.script import DeclaredSettingRow, ScalarRow, UnavailableSettingRow
from harness.records.telemetry import DeviceDetailRow, DeviceProcessRow, HostDetailRow, WorkerSampleRow

MemoryRow = MemorySampleRow | SnapshotRow | AllocationRow | ModuleMemoryRow | LeakRow | OomReportRow
ScriptRow = ScalarRow | DeclaredSettingRow | UnavailableSettingRow
CostRow = OverheadRow | UnobservedRow
EffectRow = MeasurementRow | MeasurementBlockRow | MeasurementEndRow
ProfilingRow = ProfileRow | ProfileOpRow | ProfileModuleRow | ProfileStackRow
TelemetryRow = (
    DeviceSampleRow | HostSampleRow | DeviceDetailRow | DeviceProcessRow | HostDetailRow | WorkerSampleRow
)
# All rows of a log except steps.
Row = (
    TelemetryRow
    | EventRow
    | SettingsRow
    | AckRow
    | ModelSizeRow
    | FlopsRow
    | MemoryRow
    | ProfilingRow
    | CostRow
    | ReferenceRow
    | ScriptRow
    | EffectRow
)


def insert_sql(table: str, row: type[NamedTuple], rows: int = 1) -> str:
    """Return the statement that inserts `rows` rows of one kind, with every field bound."""
    fields: tuple[str, ...] = row._fields
    values = "(" + ", ".join("?" * len(fields)) + ")"
    return f"INSERT INTO {table} ({', '.join(fields)}) VALUES {', '.join([values] * rows)}"


def replace_sql(table: str, row: type[NamedTuple]) -> str:
    """Return the statement that inserts a row of one kind in place of one with the same key."""
    return insert_sql(table, row).replace("INSERT", "INSERT OR REPLACE", 1)


INSERTS: dict[type, str] = {
    DeviceSampleRow: insert_sql("device_samples", DeviceSampleRow),
    HostSampleRow: insert_sql("host_samples", HostSampleRow),
    DeviceDetailRow: insert_sql("device_details", DeviceDetailRow),
    DeviceProcessRow: insert_sql("device_processes", DeviceProcessRow),
    HostDetailRow: insert_sql("host_details", HostDetailRow),
    WorkerSampleRow: insert_sql("worker_samples", WorkerSampleRow),
    EventRow: insert_sql("events", EventRow),
    SettingsRow: insert_sql("settings", SettingsRow),
    AckRow: insert_sql("acks", AckRow),
    MemorySampleRow: insert_sql("memory_samples", MemorySampleRow),
    SnapshotRow: insert_sql("snapshots", SnapshotRow),
    AllocationRow: insert_sql("allocations", AllocationRow),
    ModuleMemoryRow: insert_sql("module_memory", ModuleMemoryRow),
    LeakRow: insert_sql("leaks", LeakRow),
    OomReportRow: insert_sql("oom_reports", OomReportRow),
    FlopsRow: insert_sql("flops", FlopsRow),
    OverheadRow: insert_sql("own_cost", OverheadRow),
    ReferenceRow: insert_sql("reference_work", ReferenceRow),
    UnobservedRow: insert_sql("unobserved_steps", UnobservedRow),
    ProfileRow: insert_sql("profiles", ProfileRow),
    ProfileOpRow: insert_sql("profile_ops", ProfileOpRow),
    ProfileModuleRow: insert_sql("profile_modules", ProfileModuleRow),
    ProfileStackRow: insert_sql("profile_stacks", ProfileStackRow),
    ScalarRow: replace_sql("scalars", ScalarRow),
    DeclaredSettingRow: replace_sql("declared_settings", DeclaredSettingRow),
    UnavailableSettingRow: replace_sql("unavailable_settings", UnavailableSettingRow),
    MeasurementRow: insert_sql("measurements", MeasurementRow),
    MeasurementBlockRow: insert_sql("measurement_blocks", MeasurementBlockRow),
    MeasurementEndRow: insert_sql("measurement_ends", MeasurementEndRow),
    ModelSizeRow: "UPDATE run SET model_parameters = ?",
}
RUN_INSERT = insert_sql("run", RunRow)


@cache
def insert_of(kind: type[Row], rows: int) -> str:
    """Return the statement that stores `rows` rows of one kind, which has to be inserted."""
    one = INSERTS[kind]
    return one + (", " + one.rpartition(" VALUES ")[2]) * (rows - 1)


class StateChange(NamedTuple):
    """A new state in the run's row; `event` reports it, None when another event does."""

    state: RunState
    message: str
    ended_unix_ns: int | None
    event: EventRow | None

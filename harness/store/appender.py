"""Appends rows to a log, whole batches in one transaction, and keeps the rollups with them.

The only place that writes a log. `harness.store.writer` puts a thread and a bounded buffer before it; the
demo appends to it directly.
"""

import ctypes
import os
import sqlite3
import weakref
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from harness.errors import HomeError
from harness.flops_records import FlopsRow
from harness.memory_records import (
    AllocationRow,
    LeakRow,
    MemorySampleRow,
    ModuleMemoryRow,
    OomReportRow,
    SnapshotRow,
)
from harness.own_cost_records import OwnCostRow, UnobservedRow
from harness.profile_records import ProfileModuleRow, ProfileOpRow, ProfileRow, ProfileStackRow
from harness.records import (
    AckRow,
    DeviceSampleRow,
    EventRow,
    HostSampleRow,
    ModelSizeRow,
    RunRow,
    RunState,
    SettingsRow,
    StepRow,
)
from harness.store.mounts import refuse_network
from harness.store.rollups import LEVELS, SIZES, device_rollup_sql, step_rollup_sql
from harness.store.schema import LOG_APPLICATION_ID, LOG_MIGRATIONS, migrate
from harness.telemetry_records import DeviceDetailRow, DeviceProcessRow, HostDetailRow, WorkerSampleRow

MemoryRow = MemorySampleRow | SnapshotRow | AllocationRow | ModuleMemoryRow | LeakRow | OomReportRow
CostRow = OwnCostRow | UnobservedRow
ProfilingRow = ProfileRow | ProfileOpRow | ProfileModuleRow | ProfileStackRow
TelemetryRow = (
    DeviceSampleRow | HostSampleRow | DeviceDetailRow | DeviceProcessRow | HostDetailRow | WorkerSampleRow
)
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
)
"""What a log takes besides steps."""

_CHUNKS = (64, 32, 16, 8, 4, 2, 1)
"""Steps in one INSERT: the interpreter lock changes hands once or twice a statement, and each time training
waits. So any number of steps takes few statements."""


def _insert(table: str, row: type[NamedTuple], rows: int = 1) -> str:
    fields: tuple[str, ...] = row._fields
    values = "(" + ", ".join("?" * len(fields)) + ")"
    return f"INSERT INTO {table} ({', '.join(fields)}) VALUES {', '.join([values] * rows)}"


_TABLES: dict[type, str] = {
    DeviceSampleRow: _insert("device_samples", DeviceSampleRow),
    HostSampleRow: _insert("host_samples", HostSampleRow),
    DeviceDetailRow: _insert("device_details", DeviceDetailRow),
    DeviceProcessRow: _insert("device_processes", DeviceProcessRow),
    HostDetailRow: _insert("host_details", HostDetailRow),
    WorkerSampleRow: _insert("worker_samples", WorkerSampleRow),
    EventRow: _insert("events", EventRow),
    SettingsRow: _insert("settings", SettingsRow),
    AckRow: _insert("acks", AckRow),
    MemorySampleRow: _insert("memory_samples", MemorySampleRow),
    SnapshotRow: _insert("snapshots", SnapshotRow),
    AllocationRow: _insert("allocations", AllocationRow),
    ModuleMemoryRow: _insert("module_memory", ModuleMemoryRow),
    LeakRow: _insert("leaks", LeakRow),
    OomReportRow: _insert("oom_reports", OomReportRow),
    FlopsRow: _insert("flops", FlopsRow),
    OwnCostRow: _insert("own_cost", OwnCostRow),
    UnobservedRow: _insert("unobserved_steps", UnobservedRow),
    ProfileRow: _insert("profiles", ProfileRow),
    ProfileOpRow: _insert("profile_ops", ProfileOpRow),
    ProfileModuleRow: _insert("profile_modules", ProfileModuleRow),
    ProfileStackRow: _insert("profile_stacks", ProfileStackRow),
    ModelSizeRow: "UPDATE run SET model_parameters = ?",
}
_STEPS = {rows: _insert("steps", StepRow, rows) for rows in _CHUNKS}
_RUN = _insert("run", RunRow)
_STATE = "UPDATE run SET state = ?, state_message = ?, ended_unix_ns = ?"
_STEP_ROLLUPS = tuple(step_rollup_sql(level) for level in range(1, LEVELS + 1))
_DEVICE_ROLLUPS = tuple(device_rollup_sql(level) for level in range(1, LEVELS + 1))


class StateChange(NamedTuple):
    """A new last word in the run's row; `event` stands beside it among the events."""

    state: RunState
    message: str
    ended_unix_ns: int | None
    event: EventRow


class LogAppender:
    """The one writing connection to a log, for one thread at a time. A context manager."""

    def __init__(self, path: Path, run: RunRow) -> None:
        """Create the log with its run row, durably.

        Raises HomeError when the place cannot hold a log, or holds the log of an earlier run.
        """
        refuse_network(path.parent)
        self._steps_done = [0] * (LEVELS + 1)
        self._device_done: dict[str, list[int]] = {}
        try:
            self._connection: sqlite3.Connection | None = _open(path)
            self._begin(durable=True)
            if self._connection.execute("SELECT count(*) FROM run").fetchone()[0]:
                raise HomeError(
                    f"{path} already holds a run; a run is logged once, into a folder of its own."
                )
            self._connection.execute(_RUN, run)
            self._commit(durable=True)
        except sqlite3.Error as error:
            raise HomeError(f"The log {path} could not be begun: {error}.") from None
        _OPEN.add(self)

    def append(
        self,
        steps: Sequence[StepRow] = (),
        rows: Iterable[Row] = (),
        states: Iterable[StateChange] = (),
        durable: bool = False,
    ) -> None:
        """Append everything in one transaction, or nothing; raises sqlite3.Error then.

        `steps` increase strictly, also over the calls. `durable` waits until the disk has it.
        """
        connection = self._begin(durable)
        try:
            start = 0
            for rows_at_once in _CHUNKS:
                while len(steps) - start >= rows_at_once:
                    chunk = steps[start : start + rows_at_once]
                    connection.execute(_STEPS[rows_at_once], tuple(chain.from_iterable(chunk)))
                    start += rows_at_once
            devices: dict[str, int] = {}
            for row in rows:
                connection.execute(_TABLES[type(row)], row)
                if type(row) is DeviceSampleRow:
                    devices[row.device] = row.seq
            for change in states:
                connection.execute(_STATE, (change.state, change.message, change.ended_unix_ns))
                connection.execute(_TABLES[EventRow], change.event)
            steps_done = self._roll_up_steps(connection, steps[-1].step) if steps else self._steps_done
            device_done = {d: self._roll_up_device(connection, d, seq) for d, seq in devices.items()}
        except BaseException:
            self._rollback()
            raise
        self._commit(durable)
        self._steps_done = steps_done
        self._device_done |= device_done

    def _roll_up_steps(self, connection: sqlite3.Connection, last: int) -> list[int]:
        done = list(self._steps_done)
        for level in range(1, LEVELS + 1):
            end = last // SIZES[level]
            if end <= done[level]:
                break
            connection.execute(_STEP_ROLLUPS[level - 1], {"first": done[level], "end": end})
            done[level] = end
        return done

    def _roll_up_device(self, connection: sqlite3.Connection, device: str, last: int) -> list[int]:
        done = list(self._device_done.get(device, [0] * (LEVELS + 1)))
        for level in range(1, LEVELS + 1):
            end = last // SIZES[level]
            if end <= done[level]:
                break
            bounds = {"device": device, "first": done[level], "end": end}
            connection.execute(_DEVICE_ROLLUPS[level - 1], bounds)
            done[level] = end
        return done

    def _begin(self, durable: bool) -> sqlite3.Connection:
        if self._connection is None:
            raise sqlite3.ProgrammingError("the log is closed")
        if durable:
            self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def _commit(self, durable: bool) -> None:
        assert self._connection is not None
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            self._rollback()
            raise
        if durable:
            self._connection.execute("PRAGMA synchronous = NORMAL")

    def _rollback(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the log; where nobody reads it at that moment it becomes one plain file. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        _OPEN.discard(self)
        try:
            connection.execute("PRAGMA busy_timeout = 200")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.OperationalError:
            pass  # Somebody reads, or the disk is full: the log stays in WAL mode, which every reader takes.
        finally:
            connection.close()

    def abandon(self) -> None:
        """In a forked child: forget the connection without closing it, which would touch the parent's log."""
        connection, self._connection = self._connection, None
        if connection is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_OPEN: "weakref.WeakSet[LogAppender]" = weakref.WeakSet()


def _abandon_all() -> None:
    for appender in list(_OPEN):
        appender.abandon()


os.register_at_fork(after_in_child=_abandon_all)


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    try:
        connection.execute("PRAGMA mmap_size = 0")
        connection.execute("PRAGMA trusted_schema = OFF")
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise HomeError(f"{path.parent} does not support a write-ahead log (it says {mode!r}).")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 8388608")
        # SQLite's own 2 MB would fill over 20,000 steps and look like a leak of the model on the CPU.
        connection.execute("PRAGMA cache_size = -256")
        migrate(connection, LOG_MIGRATIONS, LOG_APPLICATION_ID)
    except BaseException:
        connection.close()
        raise
    return connection

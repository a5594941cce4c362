"""The tables of an export: their columns, with units in the names, and the conversion of rows to values."""

import typing
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from harness.records.floats import decode_float
from harness.records.memory import LeakRow, MemorySampleRow, OomReportRow
from harness.records.overhead import UnobservedRow
from harness.records.run import (
    ZERO_IF_UNKNOWN,
    DeviceSampleRow,
    EventRow,
    HostSampleRow,
    SettingsRow,
    StepFlag,
    StepRow,
)
from harness.records.script import ScalarRow
from harness.records.telemetry import DeviceDetailRow, HostDetailRow
from harness.store.reader import LogReader

# An int, float or str; None: not measured.
Value = Any


class ColumnType(StrEnum):
    """The types of exported columns; every column may have empty values."""

    INT = "int"
    FLOAT = "float"
    TEXT = "text"


class Column(NamedTuple):
    """One exported column."""

    name: str
    type: ColumnType
    # True for a text that is JSON.
    is_json: bool = False


class Table(NamedTuple):
    """One exported table. `values` converts a row of the log to the values of `columns`."""

    name: str
    row: type[Any]
    columns: tuple[Column, ...]
    values: Callable[[Any], tuple[Value, ...]]

    def pages(self, reader: LogReader) -> Iterator[Sequence[tuple[Value, ...]]]:
        """Yield all rows in pages of bounded size. Raises LogError."""
        for page in reader.tables.pages(self.row):
            yield [self.values(row) for row in page]


_TYPES = {int: ColumnType.INT, float: ColumnType.FLOAT, str: ColumnType.TEXT}
_JSON = frozenset({"detail", "settings", "changed", "report"})
# Names in the log without their unit.
_RENAMED = {
    LeakRow: {
        "low": "low_bytes_per_step",
        "high": "high_bytes_per_step",
        "detection_limit": "detection_limit_bytes_per_step",
    }
}
_FLAGS = tuple(flag for flag in StepFlag if flag)


def _columns(row: type[Any]) -> tuple[Column, ...]:
    renamed = _RENAMED.get(row, {})
    columns = []
    for name, hint in typing.get_type_hints(row).items():
        kind = next(one for one in (typing.get_args(hint) or (hint,)) if one in _TYPES)
        columns.append(Column(renamed.get(name, name), _TYPES[kind], name in _JSON))
    return tuple(columns)


def _plain(name: str, row: type[Any]) -> Table:
    return Table(name, row, _columns(row), tuple)


def _steps() -> Table:
    """Steps have one column for the loss, NaN included, their flags as words, and no value where a zero means
    that there is none."""
    fields: Sequence[str] = StepRow._fields
    state, loss, flags = (fields.index(name) for name in ("loss_state", "loss", "flags"))
    may_be_unknown = [fields.index(name) for name in ZERO_IF_UNKNOWN]
    columns = list(_columns(StepRow))
    columns[flags] = Column("flags", ColumnType.TEXT)
    del columns[state]

    def values(row: StepRow) -> tuple[Value, ...]:
        cells: list[Value] = list(row)
        for column in may_be_unknown:
            cells[column] = cells[column] or None
        cells[loss] = decode_float(row.loss, row.loss_state)
        cells[flags] = flag_words(row.flags)
        del cells[state]
        return tuple(cells)

    return Table("steps", StepRow, tuple(columns), values)


def _unobserved_steps() -> Table:
    def values(row: UnobservedRow) -> tuple[Value, ...]:
        return tuple(row._replace(samples=row.samples or None))  # type: ignore[arg-type]  # an empty cell

    return Table("unobserved_steps", UnobservedRow, _columns(UnobservedRow), values)


def _scalars() -> Table:
    names = ("step", "name", "t_ns", "value")
    columns = tuple(column for column in _columns(ScalarRow) if column.name in names)

    def values(row: ScalarRow) -> tuple[Value, ...]:
        return row.step, row.name, row.t_ns, decode_float(row.value, row.value_state)

    return Table("scalars", ScalarRow, columns, values)


def flag_words(flags: int) -> str:
    """Return the flags of a step as words, such as "warm_up|profiled"; empty without a flag."""
    return "|".join(flag.name.lower() for flag in _FLAGS if flags & flag and flag.name is not None)


TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        _steps(),
        _unobserved_steps(),
        _scalars(),
        _plain("memory_samples", MemorySampleRow),
        _plain("leaks", LeakRow),
        _plain("oom_reports", OomReportRow),
        _plain("device_samples", DeviceSampleRow),
        _plain("device_details", DeviceDetailRow),
        _plain("host_samples", HostSampleRow),
        _plain("host_details", HostDetailRow),
        _plain("events", EventRow),
        _plain("settings", SettingsRow),
    )
}

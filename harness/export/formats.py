"""Writers of one table: CSV, JSON lines and Parquet. Each writes page by page into an open file."""

import csv
import json
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import IO, Any, Protocol

from harness.export.tables import Column, ColumnType, Table, Value
from harness.files.plain_json import json_value


class ExportFormat(StrEnum):
    """The formats of an export."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"
    TENSORBOARD = "tensorboard"

    @property
    def is_text(self) -> bool:
        """True for a format that can be printed."""
        return self in (ExportFormat.CSV, ExportFormat.JSONL)


class TableWriter(Protocol):
    """Writes the rows of one table into a file; `close` completes the file and leaves it open."""

    def write(self, rows: Sequence[tuple[Value, ...]]) -> None:
        """Append rows."""

    def close(self) -> None:
        """Write what belongs at the end of the file."""


class CsvWriter:
    """CSV as RFC 4180 has it, with a header. Empty: not measured; NaN and infinities as pandas reads them."""

    def __init__(self, table: Table, file: IO[str]) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._writer.writerow([column.name for column in table.columns])

    def write(self, rows: Sequence[tuple[Value, ...]]) -> None:
        """Append rows."""
        self._writer.writerows(rows)

    def close(self) -> None:
        """Do nothing: the file is complete after each page."""


class JsonLinesWriter:
    """One JSON object per line. JSON has no NaN and no infinities, so these are the strings "NaN",
    "Infinity" and "-Infinity"; null: not measured."""

    def __init__(self, table: Table, file: IO[str]) -> None:
        self._file = file
        self._columns = table.columns

    def write(self, rows: Sequence[tuple[Value, ...]]) -> None:
        """Append rows."""
        names = [column.name for column in self._columns]
        lines = []
        for row in rows:
            values = map(_json_cell, self._columns, row)
            line = dict(zip(names, values, strict=True))
            lines.append(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.writelines(lines)

    def close(self) -> None:
        """Do nothing: the file is complete after each page."""


class ParquetWriter:
    """Parquet by pyarrow, one row group per page. Null: not measured; NaN stays NaN."""

    def __init__(self, table: Table, file: IO[bytes]) -> None:
        import pyarrow  # Takes 0.1 s, which other commands do without.
        from pyarrow import parquet

        self._arrow = pyarrow
        types = {
            ColumnType.INT: pyarrow.int64(),
            ColumnType.FLOAT: pyarrow.float64(),
            ColumnType.TEXT: pyarrow.string(),
        }
        self._schema = pyarrow.schema([(column.name, types[column.type]) for column in table.columns])
        self._writer = parquet.ParquetWriter(file, self._schema, compression="zstd")

    def write(self, rows: Sequence[tuple[Value, ...]]) -> None:
        """Append rows."""
        arrays = [
            self._arrow.array(values, type=field.type)
            for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def open_table(form: ExportFormat, table: Table, file: IO[Any]) -> TableWriter:
    """Return the writer of a table. `file` is open for text or, for Parquet, for bytes."""
    match form:
        case ExportFormat.CSV:
            return CsvWriter(table, file)
        case ExportFormat.JSONL:
            return JsonLinesWriter(table, file)
        case ExportFormat.PARQUET:
            return ParquetWriter(table, file)
        case ExportFormat.TENSORBOARD:
            raise ValueError("event files have no tables")


def _json_cell(column: Column, value: Value) -> Any:
    if column.type is ColumnType.FLOAT:
        return json_float(value)
    if column.is_json and isinstance(value, str):
        try:
            return json_value(value)
        except ValueError:
            return value
    return value


def json_float(value: float | None) -> float | str | None:
    """Return `value` as JSON can have it."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

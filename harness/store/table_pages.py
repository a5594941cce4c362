"""Reads whole tables of a log page by page, for export: any number of rows in bounded memory."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from harness.errors import LogDamagedError
from harness.records.memory import LeakRow, MemorySampleRow, OomReportRow
from harness.records.overhead import UnobservedRow
from harness.records.run import DeviceSampleRow, EventRow, HostSampleRow, SettingsRow, StepRow
from harness.records.script import ScalarRow
from harness.records.telemetry import DeviceDetailRow, HostDetailRow
from harness.store.querying import Queries
from harness.store.schema import step_columns

Row = TypeVar("Row", bound=NamedTuple)

# A page of steps takes some tens of milliseconds and a few megabytes.
PAGE_ROWS = 10_000
# The first version of the log with each table.
_SINCE: dict[type, tuple[str, int]] = {
    StepRow: ("steps", 1),
    DeviceSampleRow: ("device_samples", 1),
    HostSampleRow: ("host_samples", 1),
    EventRow: ("events", 1),
    SettingsRow: ("settings", 1),
    MemorySampleRow: ("memory_samples", 2),
    LeakRow: ("leaks", 2),
    OomReportRow: ("oom_reports", 2),
    DeviceDetailRow: ("device_details", 3),
    HostDetailRow: ("host_details", 3),
    UnobservedRow: ("unobserved_steps", 6),
    ScalarRow: ("scalars", 8),
}


class TablePages:
    """The tables of one open log, `harness.store.reader.LogReader.tables`. Raises LogError as the reader."""

    def __init__(self, queries: Queries, version: int) -> None:
        self._queries = queries
        self._version = version

    def pages(self, row: type[Row], page_rows: int = PAGE_ROWS) -> Iterator[list[Row]]:
        """Yield all rows of the kind `row` in the order of writing, scalars by name and step; at most
        `page_rows` at once. Between two pages no query is open, so a live run is not held up."""
        table, since = _SINCE[row]
        if self._version < since:
            return
        after: tuple[Any, ...] | None = None
        keys = ("name", "step") if row is ScalarRow else ("rowid",)
        while True:
            page, reached = self._page(row, table, keys, after, page_rows)
            if page:
                yield page
            if len(page) < page_rows:
                return
            if reached is None or (after is not None and not after < reached):
                raise LogDamagedError(
                    f"{self._queries.shown_path} is damaged (the table {table} has no order); copy the "
                    "run's folder again from its source, or delete the run."
                )
            after = reached

    def _page(
        self, row: type[Row], table: str, keys: Sequence[str], after: tuple[Any, ...] | None, limit: int
    ) -> tuple[list[Row], tuple[Any, ...] | None]:
        """Return the rows after the key `after`, and the key of the last one."""
        fields = step_columns(self._version) if row is StepRow else ", ".join(row._fields)
        key = ", ".join(keys)
        where = "" if after is None else f"WHERE ({key}) > ({', '.join('?' * len(keys))})"
        rest = f"FROM {table} {where} ORDER BY {key} LIMIT ?"
        values = (*(after or ()), limit)
        if keys == ("rowid",):
            numbered = self._queries.numbered_rows(row, f"SELECT rowid, {fields} {rest}", values)
            last = numbered[-1][0] if numbered else None
            return [one for _, one in numbered], (last,) if type(last) is int else None
        rows = self._queries.rows(row, f"SELECT {fields} {rest}", values)
        return rows, tuple(getattr(rows[-1], name) for name in keys) if rows else None

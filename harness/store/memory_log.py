"""Reads the memory tables of a log; logs of the first version have none, so results are empty."""

import json
from collections.abc import Sequence

from harness.records.memory import (
    AllocationRow,
    LeakRow,
    MemorySampleRow,
    ModuleMemoryRow,
    OomReportRow,
    SnapshotRow,
)
from harness.store.tables import Tables

_STAMP = """SELECT
    coalesce((SELECT max(seq) FROM memory_samples), -1),
    coalesce((SELECT max(snapshot_id) FROM snapshots), -1),
    coalesce((SELECT max(id) FROM leaks), -1), coalesce((SELECT max(id) FROM oom_reports), -1)"""


class MemoryLog(Tables):
    """The memory tables of one open log, `harness.store.reader.LogReader.memory`.

    Every method raises LogError as the reader's do.
    """

    since_version = 2

    def stamp(self) -> tuple[int, ...]:
        """Return a token that changes when a row is added."""
        return self._queries.numbers(_STAMP, ())[0] if self._is_there else ()

    def latest_sample(self) -> MemorySampleRow | None:
        """Return the newest sample, None without any."""
        return next(iter(self._rows(MemorySampleRow, "memory_samples", "ORDER BY seq DESC LIMIT 1")), None)

    def samples(self, first_step: int, last_step: int, max_points: int = 600) -> list[MemorySampleRow]:
        """Return the samples during these steps, in order, at most `max_points`: of each group of neighbors
        the one with the most unused reserved memory."""
        span = "step BETWEEN ? AND ?"
        if not self._is_there:
            return []
        counted = self._queries.numbers(
            f"SELECT count(*) FROM memory_samples WHERE {span}", (first_step, last_step)
        )[0][0]
        every = -(-counted // (max_points - 1)) or 1
        # SQLite takes the other columns from the row with the maximum.
        columns = ", ".join(MemorySampleRow._fields)
        unused = "max(coalesce(reserved_bytes, 0) - coalesce(allocated_bytes, 0))"
        return self._queries.rows(
            MemorySampleRow,
            f"SELECT {columns}, {unused} FROM memory_samples WHERE {span} GROUP BY seq / ? ORDER BY seq",
            (first_step, last_step, every),
            extra_columns=1,
        )

    def retries(self, steps: Sequence[int]) -> list[tuple[int, int]]:
        """Return the cumulative number of allocator retries at each of these steps, in order; steps without a
        value are left out."""
        if not self._is_there:
            return []
        sql = """SELECT step, alloc_retries FROM steps
            WHERE step IN (SELECT value FROM json_each(?)) AND alloc_retries IS NOT NULL ORDER BY step"""
        return [(step, count) for step, count in self._queries.numbers(sql, (json.dumps(list(steps)),))]

    def snapshots(self) -> list[SnapshotRow]:
        """Return all snapshots, in order."""
        return self._rows(SnapshotRow, "snapshots", "ORDER BY snapshot_id")

    def allocations(self, snapshot_id: int) -> list[AllocationRow]:
        """Return the allocation sites of a snapshot, the largest first."""
        return self._rows(AllocationRow, "allocations", "WHERE snapshot_id = ? ORDER BY rank", snapshot_id)

    def modules(self, snapshot_id: int) -> list[ModuleMemoryRow]:
        """Return the modules of a snapshot, by path."""
        return self._rows(
            ModuleMemoryRow, "module_memory", "WHERE snapshot_id = ? ORDER BY module", snapshot_id
        )

    def leaks(self) -> list[LeakRow]:
        """Return all leak verdicts, in order; the last of each series is current."""
        return self._rows(LeakRow, "leaks", "ORDER BY id")

    def current_leaks(self) -> list[LeakRow]:
        """Return the newest verdict on each series, in the order of writing."""
        return [row for _, row in self.current_leaks_after(0)]

    def current_leaks_after(self, after_id: int) -> list[tuple[int, LeakRow]]:
        """Return the newest verdict on each series with one after `after_id`, in order, each with its id."""
        if not self._is_there:
            return []
        sql = f"""SELECT id, {", ".join(LeakRow._fields)} FROM leaks
            WHERE id IN (SELECT max(id) FROM leaks WHERE id > ? GROUP BY series) ORDER BY id"""
        return self._queries.numbered_rows(LeakRow, sql, (after_id,))

    def oom_reports(self) -> list[OomReportRow]:
        """Return all out-of-memory reports, in order."""
        return self._rows(OomReportRow, "oom_reports", "ORDER BY id")

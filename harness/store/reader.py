"""Reads a run's log, read-only, while it is written or long after. The only place that queries a log.

A reader is cheap: open one per use, or one per thread. Nothing it does can disturb the writer: it reads with
`fetchall()` and keeps no cursor, since a half-read one would pin the write-ahead log.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from harness.errors import LogDamagedError, LogError, LogForeignError, LogMissingError, LogNewerError
from harness.flops_records import FlopsRow
from harness.records import (
    AckRow,
    DeviceSampleRow,
    EventRow,
    HostSampleRow,
    RunRow,
    SettingsRow,
    StepRow,
)
from harness.store.memory_log import MemoryLog
from harness.store.opening import Opened, open_reading
from harness.store.own_cost_log import OwnCostLog
from harness.store.profile_log import ProfileLog
from harness.store.schema import FLOPS_SINCE, LOG_APPLICATION_ID, LOG_MIGRATIONS
from harness.store.series import StepSeries, device_series, step_series
from harness.store.telemetry_log import TelemetryLog


class StepExtent(NamedTuple):
    """The steps a log holds: the first and last number (None: no step yet), and how many."""

    first: int | None
    last: int | None
    steps: int


def _columns(row: type[NamedTuple]) -> str:
    fields: tuple[str, ...] = row._fields
    return ", ".join(fields)


_STEPS = f"SELECT {_columns(StepRow)} FROM steps"
_SAMPLE = f"SELECT {_columns(DeviceSampleRow)} FROM device_samples"
_LONGEST_UNOBSERVED = 64
"""Buckets of more steps hold others beside those of an unobserved block, so none is missing for one."""
_STAMP = """SELECT
    coalesce((SELECT max(step) FROM steps), -1), coalesce((SELECT max(id) FROM events), -1),
    coalesce((SELECT max(rowid) FROM device_samples), -1), coalesce((SELECT max(seq) FROM host_samples), -1),
    coalesce((SELECT max(version) FROM settings), -1), coalesce((SELECT max(id) FROM acks), -1)"""


class LogReader:
    """A read-only connection to one log, for one thread. A context manager.

    Every method raises LogDamagedError when the file turns out to be damaged where it reads.

    Attributes:
        memory: what the log says about memory beside the steps.
        own_cost: what observing the run cost it.
        profiles: the profiles taken.
        telemetry: what it says about devices and the host beside their samples.
    """

    def __init__(self, path: Path) -> None:
        """Open the log. Raises LogMissingError, LogForeignError, LogNewerError or LogDamagedError."""
        self._path = path
        self._opened: Opened | None = None
        try:
            self._opened = open_reading(path)
            self._version = self._checked_version()
            self.memory = MemoryLog(self._fetch, self._version)
            self.own_cost = OwnCostLog(self._fetch, self._version)
            self.profiles = ProfileLog(self._fetch, self._version)
            self.telemetry = TelemetryLog(self._fetch, self._version)
        except sqlite3.Error as error:
            self.close()
            raise self._translated(error) from None
        except LogError:
            self.close()
            raise

    def run(self) -> RunRow:
        """Who the run is, and its last word on its state."""
        rows = self._fetch(f"SELECT {_columns(RunRow)} FROM run")
        if not rows:
            raise LogMissingError(f"{self._path} holds no run yet; try again in a moment.")
        return RunRow(*rows[0])

    def stamp(self) -> tuple[int, ...]:
        """A token that changes whenever something was added to the log; costs microseconds."""
        return (*self.memory.stamp(), *self.profiles.stamp(), *self._fetch(_STAMP)[0])

    def extent(self) -> StepExtent:
        """The steps the log holds; `steps` is exact when no number was left out."""
        first, last = self._fetch("SELECT (SELECT min(step) FROM steps), (SELECT max(step) FROM steps)")[0]
        return StepExtent(first, last, 0 if last is None else last - first + 1)

    def last_steps(self, n: int) -> list[StepRow]:
        """The last `n` steps, oldest first."""
        rows = self._fetch(f"{_STEPS} ORDER BY step DESC LIMIT ?", (n,))
        return [StepRow(*row) for row in reversed(rows)]

    def steps(self, first: int, last: int, limit: int = 10_000) -> list[StepRow]:
        """The steps from `first` to `last`, both included, `limit` at most."""
        rows = self._fetch(f"{_STEPS} WHERE step BETWEEN ? AND ? ORDER BY step LIMIT ?", (first, last, limit))
        return [StepRow(*row) for row in rows]

    def series(
        self, first: int, last: int, max_points: int = 1000, columns: Sequence[str] | None = None
    ) -> StepSeries:
        """The steps [first, last], widened to whole buckets, as at most `max_points` buckets.

        `columns` are the plotted columns wanted ("step_ns", "loss", …), all when left out; fewer are faster.
        """
        found = step_series(self._fetch, first, last, max_points, columns)
        if found.bucket_size > _LONGEST_UNOBSERVED:
            return found
        blocks = self.own_cost.unobserved(first, last)
        return found._replace(unobserved=tuple((block.first_step, block.last_step) for block in blocks))

    def device_series(
        self, device: str, first_step: int, last_step: int, max_points: int = 1000
    ) -> StepSeries:
        """As `series`, of the samples `device` gave while those steps were under way."""
        return device_series(self._fetch, device, first_step, last_step, max_points)

    def devices(self) -> list[str]:
        """The devices that gave samples."""
        sql = """WITH RECURSIVE d(device) AS (SELECT min(device) FROM device_samples UNION ALL
            SELECT (SELECT min(device) FROM device_samples WHERE device > d.device) FROM d
            WHERE d.device IS NOT NULL) SELECT device FROM d WHERE device IS NOT NULL"""
        return [row[0] for row in self._fetch(sql)]

    def latest_device_samples(self) -> list[DeviceSampleRow]:
        """The newest sample of each device."""
        found = []
        for device in self.devices():
            rows = self._fetch(f"{_SAMPLE} WHERE device = ? ORDER BY seq DESC LIMIT 1", (device,))
            found += [DeviceSampleRow(*row) for row in rows]
        return found

    def latest_host_sample(self) -> HostSampleRow | None:
        """The newest sample of the host; None when there is none."""
        rows = self._fetch(f"SELECT {_columns(HostSampleRow)} FROM host_samples ORDER BY seq DESC LIMIT 1")
        return HostSampleRow(*rows[0]) if rows else None

    def events(self, after_id: int = 0) -> list[tuple[int, EventRow]]:
        """The events after `after_id`, in order, each with its id."""
        sql = f"SELECT id, {_columns(EventRow)} FROM events WHERE id > ? ORDER BY id"
        return [(row[0], EventRow(*row[1:])) for row in self._fetch(sql, (after_id,))]

    def settings_history(self) -> list[SettingsRow]:
        """Every version of the settings, in order."""
        rows = self._fetch(f"SELECT {_columns(SettingsRow)} FROM settings ORDER BY version")
        return [SettingsRow(*row) for row in rows]

    def flops(self) -> list[FlopsRow]:
        """The arithmetic of a sample, one row a way through the model; none where it was not counted."""
        if self._version < FLOPS_SINCE:
            return []
        return [FlopsRow(*row) for row in self._fetch(f"SELECT {_columns(FlopsRow)} FROM flops ORDER BY 1")]

    def steps_apart(self, first: int, last: int, stride: int) -> list[StepRow]:
        """Every `stride`-th step from `first` to `last`: a long range at the cost of what is read of it."""
        sql = f"""WITH RECURSIVE wanted(number) AS (SELECT ?1 UNION ALL SELECT number + ?3 FROM wanted
            WHERE number + ?3 <= ?2) SELECT {_columns(StepRow)} FROM wanted CROSS JOIN steps
            ON step = number ORDER BY number"""
        return [StepRow(*row) for row in self._fetch(sql, (first, last, stride))]

    def acks(self) -> list[AckRow]:
        """Every answer to a command, in order."""
        return [AckRow(*row) for row in self._fetch(f"SELECT {_columns(AckRow)} FROM acks ORDER BY id")]

    def check(self) -> None:
        """Read the whole file and raise LogDamagedError at the first thing wrong. Slow on long runs."""
        found = self._fetch("PRAGMA integrity_check(1)")[0][0]
        if found != "ok":
            found = " ".join(found.split())
            raise LogDamagedError(f"{self._path} is damaged ({found}); {_DAMAGED_ADVICE}")

    def close(self) -> None:
        """Close the log. Idempotent."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fetch(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if self._opened is None:
            raise ValueError("the reader is closed")
        try:
            return self._opened.connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from None

    def _checked_version(self) -> int:
        self._fetch("BEGIN")  # Between two looks a run may just be making its tables.
        try:
            application_id = self._fetch("PRAGMA application_id")[0][0]
            version: int = self._fetch("PRAGMA user_version")[0][0]
            tables = self._fetch("SELECT count(*) FROM sqlite_schema")[0][0]
        finally:
            self._fetch("ROLLBACK")
        if application_id != LOG_APPLICATION_ID:
            if not tables:
                raise LogMissingError(f"{self._path} has not been begun yet; try again in a moment.")
            raise LogForeignError(f"{self._path} is an SQLite file, but not a Stepscope log.")
        if version > len(LOG_MIGRATIONS):
            raise LogNewerError(
                f"{self._path} was written by a newer Stepscope (log version {version}, this one reads up to "
                f"{len(LOG_MIGRATIONS)}); update Stepscope to open it."
            )
        return version

    def _translated(self, error: sqlite3.Error) -> LogError:
        code = getattr(error, "sqlite_errorcode", None) or 0
        if code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
            return LogDamagedError(f"{self._path} is damaged ({error}); {_DAMAGED_ADVICE}")
        if not self._path.exists():
            return LogMissingError(f"{self._path} is gone; the run was moved or deleted.")
        return LogError(f"{self._path} cannot be read: {error}.")


_DAMAGED_ADVICE = "copy the run's folder again from where it came, or delete the run."

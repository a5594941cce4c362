"""Read-only access to a run's log, also while it is written. The only module that queries a log.

A reader is cheap: open one per use, or one per thread. It cannot disturb the writer, and its queries have
time limits: see `harness.store.limits`.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from harness.analysis.memory.readings import newest_reading
from harness.closing import Closing
from harness.errors import LogDamagedError, LogError, LogForeignError, LogMissingError, LogNewerError
from harness.records.flops import FlopsRow
from harness.records.memory import MeasuredPeak
from harness.records.run import (
    AckRow,
    DeviceSampleRow,
    EventKind,
    EventRow,
    HostSampleRow,
    RunRow,
    SettingsRow,
    StepFlag,
    StepRow,
)
from harness.records.step_time import StepTime
from harness.store.earlier_names import current_names
from harness.store.highest import highest_sql
from harness.store.limits import QUERY_LIMIT_S
from harness.store.measurement_log import MeasurementLog
from harness.store.memory_log import MemoryLog
from harness.store.overhead_log import OverheadLog
from harness.store.profile_log import ProfileLog
from harness.store.querying import Queries
from harness.store.reference_log import ReferenceLog
from harness.store.schema import FLOPS_SINCE, LOG_APPLICATION_ID, LOG_MIGRATIONS, step_columns
from harness.store.script_log import ScriptLog
from harness.store.series import StepSeries, device_series, step_series
from harness.store.table_pages import TablePages
from harness.store.telemetry_log import TelemetryLog

# Earlier steps among which `recent_steps` looks for a reading of the memory.
_MOST_UNREAD = 4_000


class EventCount(NamedTuple):
    """The number of events of one kind."""

    kind: str
    events: int


class StepExtent(NamedTuple):
    """The steps in a log: the first and last number (None: no step yet), and how many there are."""

    first: int | None
    last: int | None
    steps: int


def _columns(row: type[NamedTuple]) -> str:
    fields: tuple[str, ...] = row._fields
    return ", ".join(fields)


_SAMPLE = f"SELECT {_columns(DeviceSampleRow)} FROM device_samples"
# The limit of the rollups' bucket numbers; a run of a microsecond per step reaches it in a week.
MOST_STEPS = 2**40
# The length of the part of a stamp that a page's controls depend on.
CONTROLS = 4
# The newest events that are read. A chart with more markers is unreadable.
MOST_EVENTS = 2_000
# The newest versions of the settings, and acknowledgments of commands, that are read.
MOST_CHANGES = 2_000
# Steps excluded from statistics that are read for the range of a chart.
MOST_FLAGGED = 10_000
# Step times that are read at once; a comparison needs tens of thousands.
MOST_STEP_TIMES = 200_000
# Longer buckets contain other steps besides those of an unobserved block, so no bucket is missing.
_LONGEST_UNOBSERVED = 64
_EXTENT = "SELECT (SELECT min(step) FROM steps), (SELECT max(step) FROM steps)"
_STAMP = """SELECT
    coalesce((SELECT max(step) FROM steps), -1), coalesce((SELECT max(id) FROM events), -1),
    coalesce((SELECT max(rowid) FROM device_samples), -1), coalesce((SELECT max(seq) FROM host_samples), -1),
    coalesce((SELECT max(id) FROM acks), -1)"""


class LogReader(Closing):
    """A read-only connection to one log, for one thread. A context manager.

    Every method raises LogDamagedError when the part that it reads is damaged.

    Attributes:
        measurements: the measured effects.
        memory: the memory tables.
        overhead: the overhead tables.
        profiles: the profiles.
        reference: the reference work.
        script: the scalars and settings of a person's own script.
        tables: whole tables, page by page.
        telemetry: the detailed telemetry of devices and the host.
    """

    def __init__(
        self, path: Path, query_limit_s: float = QUERY_LIMIT_S, total_limit_s: float = math.inf
    ) -> None:
        """Open the log. A query that takes longer than `query_limit_s`, or ends later than `total_limit_s`
        after the opening, raises LogError.

        Raises LogMissingError, LogForeignError, LogNewerError, LogDamagedError or LogError.
        """
        self._queries = Queries(path, query_limit_s, total_limit_s)
        try:
            self._version = self._read_version()
        except LogError:
            self.close()
            raise
        self._step_columns = step_columns(self._version)
        self.measurements = MeasurementLog(self._queries, self._version)
        self.memory = MemoryLog(self._queries, self._version)
        self.overhead = OverheadLog(self._queries, self._version)
        self.profiles = ProfileLog(self._queries, self._version)
        self.reference = ReferenceLog(self._queries, self._version)
        self.script = ScriptLog(self._queries, self._version)
        self.tables = TablePages(self._queries, self._version)
        self.telemetry = TelemetryLog(self._queries, self._version)

    def at_one_moment(self) -> AbstractContextManager[None]:
        """Have what is read in the context be that of one moment, while the run goes on."""
        return self._queries.at_one_moment()

    def run(self) -> RunRow:
        """Return the run's row, with its last recorded state."""
        rows = self._queries.rows(RunRow, f"SELECT {_columns(RunRow)} FROM run LIMIT 1")
        if not rows:
            raise LogMissingError(f"{self._queries.shown_path} contains no run yet; try again in a moment.")
        return rows[0]._replace(settings=current_names(rows[0].settings))

    def stamp(self) -> tuple[int, ...]:
        """Return a token that changes when a row is added to the log; takes microseconds. The last
        `CONTROLS` numbers are those of settings, measurements and answers."""
        *rows, last_ack = self._queries.numbers(_STAMP)[0]
        controls = (*self.measurements.stamp(), last_ack)
        return (*self.memory.stamp(), *self.profiles.stamp(), *rows, *controls)

    def extent(self) -> StepExtent:
        """Return the range of steps in the log; `steps` is exact if no number is missing."""
        first, last = self._queries.numbers(_EXTENT)[0]
        if first is not None and not (type(first) is type(last) is int and 0 <= first <= last < MOST_STEPS):
            raise LogDamagedError(
                f"{self._queries.shown_path} is damaged (its steps are numbered from {first} to {last}); "
                "delete the run, or copy its folder again from its source."
            )
        return StepExtent(first, last, 0 if last is None else last - first + 1)

    def last_steps(self, n: int) -> list[StepRow]:
        """Return the last `n` steps, the oldest first."""
        sql = f"SELECT {self._step_columns} FROM steps ORDER BY step DESC LIMIT ?"
        return self._queries.rows(StepRow, sql, (n,))[::-1]

    def recent_steps(self, n: int) -> list[StepRow]:
        """Return the last `n` steps, the oldest first, and before them the newest earlier one with the memory
        of live tensors if none of them has it: where reading it is slow, many short steps have none."""
        steps = self.last_steps(n)
        if not steps or newest_reading(steps) is not None:
            return steps
        sql = f"""SELECT {self._step_columns} FROM steps WHERE step BETWEEN ? AND ?
            AND allocated_bytes IS NOT NULL ORDER BY step DESC LIMIT 1"""
        first = steps[0].step
        return self._queries.rows(StepRow, sql, (first - _MOST_UNREAD, first - 1)) + steps

    def steps(self, first: int, last: int, limit: int = 10_000) -> list[StepRow]:
        """Return the steps from `first` to `last`, both included, at most `limit`."""
        sql = f"SELECT {self._step_columns} FROM steps WHERE step BETWEEN ? AND ? ORDER BY step LIMIT ?"
        return self._queries.rows(StepRow, sql, (first, last, limit))

    def series(
        self,
        first: int,
        last: int,
        max_points: int = 1000,
        columns: Sequence[str] | None = None,
        before: StepSeries | None = None,
    ) -> StepSeries:
        """Return the steps [first, last], widened to whole buckets, as at most `max_points` buckets.

        `columns` are the plotted columns to read ("step_ns", "loss", …), by default all; fewer are faster.
        `before` is an earlier series of the same log: if it can be continued, only newer steps are read.
        """
        series = step_series(self._queries.numbers, first, last, max_points, columns, before)
        if series.bucket_size > _LONGEST_UNOBSERVED:
            return series
        blocks = self.overhead.unobserved(first, last)
        return series._replace(unobserved=tuple((block.first_step, block.last_step) for block in blocks))

    def highest(self, last: int, columns: Sequence[str]) -> tuple[Any, ...]:
        """Return the maximum of each of `columns` ("allocated_bytes", …) over the run, whose newest step is
        `last`; None if nothing was measured."""
        return self._queries.numbers(highest_sql(last, columns))[0]

    def totals(self, first: int, last: int, columns: Sequence[str]) -> tuple[Any, ...]:
        """Return the number of steps in a range, and the maximum of each of `columns` in them. Reads every
        row: for short ranges."""
        highest = "".join(f", max({name})" for name in columns)
        sql = f"SELECT count(*){highest} FROM steps WHERE step BETWEEN ? AND ?"
        return self._queries.numbers(sql, (first, last))[0]

    def device_series(
        self,
        device: str,
        first_step: int,
        last_step: int,
        max_points: int = 1000,
        before: StepSeries | None = None,
    ) -> StepSeries:
        """Like `series`, for the samples of `device` during those steps."""
        return device_series(self._queries.numbers, device, first_step, last_step, max_points, before)

    def devices(self) -> list[str]:
        """Return the devices with samples."""
        sql = """WITH RECURSIVE d(device) AS (SELECT min(device) FROM device_samples UNION ALL
            SELECT (SELECT min(device) FROM device_samples WHERE device > d.device) FROM d
            WHERE d.device IS NOT NULL) SELECT device FROM d WHERE device IS NOT NULL"""
        return self._queries.texts(sql)

    def latest_device_samples(self) -> list[DeviceSampleRow]:
        """Return the newest sample of each device."""
        newest: list[DeviceSampleRow] = []
        for device in self.devices():
            sql = f"{_SAMPLE} WHERE device = ? ORDER BY seq DESC LIMIT 1"
            newest += self._queries.rows(DeviceSampleRow, sql, (device,))
        return newest

    def latest_host_sample(self) -> HostSampleRow | None:
        """Return the newest sample of the host, None without any."""
        sql = f"SELECT {_columns(HostSampleRow)} FROM host_samples ORDER BY seq DESC LIMIT 1"
        return next(iter(self._queries.rows(HostSampleRow, sql)), None)

    def last_host_samples(self, n: int, first_step: int) -> list[HostSampleRow]:
        """Return those of the newest `n` samples of the host since `first_step`, in order."""
        sql = f"""SELECT {_columns(HostSampleRow)} FROM host_samples
            WHERE seq > (SELECT max(seq) FROM host_samples) - ? AND step >= ? ORDER BY seq"""
        return self._queries.rows(HostSampleRow, sql, (n, first_step))

    def events(self, after_id: int = 0) -> list[tuple[int, EventRow]]:
        """Return the newest `MOST_EVENTS` events after `after_id`, in order, each with its id."""
        sql = f"SELECT id, {_columns(EventRow)} FROM events WHERE id > ? ORDER BY id DESC LIMIT ?"
        return self._queries.numbered_rows(EventRow, sql, (after_id, MOST_EVENTS))[::-1]

    def event_counts(self) -> dict[str, int]:
        """Return the number of events of each kind."""
        sql = "SELECT kind, count(*) AS events FROM events GROUP BY kind ORDER BY kind LIMIT 1000"
        return {row.kind: row.events for row in self._queries.rows(EventCount, sql)}

    def settings_history(self) -> list[SettingsRow]:
        """Return the versions of the settings, in order: the first, and the newest `MOST_CHANGES`.

        A measurement has one, from its end on, that changes nothing; its blocks in between have none.
        """
        sql = f"""SELECT {_columns(SettingsRow)} FROM settings
            WHERE version = (SELECT min(version) FROM settings)
            OR version IN (SELECT version FROM settings ORDER BY version DESC LIMIT ?) ORDER BY version"""
        rows = self._queries.rows(SettingsRow, sql, (MOST_CHANGES,))
        return [
            row._replace(settings=current_names(row.settings), changed=current_names(row.changed))
            for row in self.measurements.without_blocks(rows)
        ]

    def setting_message(self, version: int) -> str:
        """Return the message of the event recorded with a version of the settings; empty without one."""
        sql = """SELECT message FROM events WHERE kind = ? AND json_valid(detail)
            AND json_extract(detail, '$.version') = ? ORDER BY id DESC LIMIT 1"""
        return next(iter(self._queries.texts(sql, (EventKind.SETTING, version))), "")

    def measured_peaks(self, first: int, last: int, versions: Sequence[int]) -> list[MeasuredPeak]:
        """Return the highest peak and baseline of the steady steps in a range under some versions of the
        settings, by their samples and version; at most 64 rows. Reads every step: for short ranges."""
        marks = ", ".join("?" * len(versions))
        sql = f"""SELECT samples, count(*), max(peak_allocated_bytes), max(allocated_bytes),
            settings_version FROM steps WHERE step BETWEEN ? AND ? AND flags = 0
            AND peak_allocated_bytes IS NOT NULL AND allocated_bytes IS NOT NULL
            AND settings_version IN ({marks})
            GROUP BY samples, settings_version ORDER BY 2 DESC LIMIT 64"""
        return self._queries.rows(MeasuredPeak, sql, (first, last, *versions))

    def highest_peak(self, first: int, last: int, versions: Sequence[int], most_samples: int) -> int:
        """Return the highest peak of the steps of `measured_peaks`, and of the warm-up, with at most so many
        samples; 0: none was measured. Reads every row."""
        marks = ", ".join("?" * len(versions))
        sql = f"""SELECT max(peak_allocated_bytes) FROM steps WHERE step BETWEEN ? AND ?
            AND flags IN ({StepFlag.NONE:d}, {StepFlag.WARM_UP:d}) AND samples <= ?
            AND settings_version IN ({marks})"""
        [(peak_bytes,)] = self._queries.numbers(sql, (first, last, most_samples, *versions))
        return peak_bytes or 0

    def flops(self) -> list[FlopsRow]:
        """Return the FLOPs per sample, with and without checkpointing; empty if they were not counted."""
        if self._version < FLOPS_SINCE:
            return []
        return self._queries.rows(FlopsRow, f"SELECT {_columns(FlopsRow)} FROM flops ORDER BY 1 LIMIT 100")

    def steps_apart(self, first: int, last: int, stride: int) -> list[StepRow]:
        """Return every `stride`-th step from `first` to `last`; the rows between are not read."""
        sql = f"""WITH RECURSIVE wanted(number) AS (
            SELECT :first UNION ALL SELECT number + :stride FROM wanted WHERE number + :stride <= :last
            ) SELECT {self._step_columns} FROM wanted CROSS JOIN steps
            ON step = number ORDER BY number"""
        return self._queries.rows(StepRow, sql, {"first": first, "last": last, "stride": stride})

    def step_times(self, first: int, last: int, stride: int = 1) -> list[StepTime]:
        """Return the times of every `stride`-th step from `first` to `last`, and of all flagged steps."""
        sql = f"""SELECT {_columns(StepTime)} FROM steps WHERE step BETWEEN ? AND ?
            AND (step % ? = 0 OR flags != 0) ORDER BY step LIMIT ?"""
        rows = self._queries.numbers(sql, (first, last, stride, MOST_STEP_TIMES))
        return [StepTime._make(row) for row in rows]

    def flagged(self, first: int, last: int, flags: StepFlag) -> list[tuple[int, int]]:
        """Return the first and last step of each block of consecutive steps with one of `flags`."""
        sql = "SELECT step FROM steps WHERE step BETWEEN ? AND ? AND flags & ? ORDER BY step LIMIT ?"
        blocks: list[tuple[int, int]] = []
        for (step,) in self._queries.numbers(sql, (first, last, int(flags), MOST_FLAGGED)):
            if blocks and blocks[-1][1] == step - 1:
                blocks[-1] = (blocks[-1][0], step)
            else:
                blocks.append((step, step))
        return blocks

    def acks(self) -> list[AckRow]:
        """Return the newest `MOST_CHANGES` acknowledgments of commands, in order."""
        sql = f"SELECT {_columns(AckRow)} FROM acks ORDER BY id DESC LIMIT ?"
        return self._queries.rows(AckRow, sql, (MOST_CHANGES,))[::-1]

    def check(self) -> None:
        """Read the whole file and raise LogDamagedError at the first error. Slow on long runs."""
        self._queries.check_integrity()

    def close(self) -> None:
        """Close the log. Idempotent."""
        self._queries.close()

    def _read_version(self) -> int:
        """Return the version of the log. Raises LogMissingError, LogForeignError or LogNewerError."""
        queries, path = self._queries, self._queries.shown_path
        with queries.at_one_moment():  # A run may create its tables between two queries.
            application_id = queries.numbers("PRAGMA application_id")[0][0]
            version: int = queries.numbers("PRAGMA user_version")[0][0]
            tables = queries.numbers("SELECT count(*) FROM sqlite_schema")[0][0]
            if application_id == LOG_APPLICATION_ID:
                queries.check_schema()
        if application_id != LOG_APPLICATION_ID:
            if not tables:
                raise LogMissingError(f"{path} is still empty; try again in a moment.")
            raise LogForeignError(f"{path} is an SQLite file, but not a Stepscope log.")
        if version > len(LOG_MIGRATIONS):
            raise LogNewerError(
                f"{path} was written by a newer Stepscope (log version {version}, this one reads up to "
                f"{len(LOG_MIGRATIONS)}); update Stepscope to open it."
            )
        return version

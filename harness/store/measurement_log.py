"""Reads the measurements of a log; older logs have none, so results are empty."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.records.measurement import Arm, BlockSums, MeasurementBlockRow, MeasurementEndRow, MeasurementRow
from harness.records.run import RECORDED_FLAGS, SettingsRow
from harness.store.tables import Tables

# The newest measurements that are read.
_MOST = 500
_MOST_BLOCKS = 4_000
_NEWEST = "ORDER BY measurement DESC LIMIT ?"
_STAMP = """SELECT coalesce((SELECT version FROM settings
        WHERE command_id IS NULL OR command_id NOT IN (SELECT command_id FROM measurements)
        ORDER BY version DESC LIMIT 1), -1),
    coalesce((SELECT max(number) FROM measurements), -1),
    coalesce((SELECT max(measurement) FROM measurement_ends), -1)"""
_DEVICE_NS = "device_step_ns + coalesce(device_gap_ns, 0)"
_BLOCKS = "WHERE measurement = ? AND arm IN ('A', 'B')"
_FINISHED = f"SELECT * FROM measurement_blocks {_BLOCKS} ORDER BY pair, position LIMIT {_MOST_BLOCKS}"
_OF_BLOCKS = f"""FROM ({_FINISHED}) AS b
    LEFT JOIN steps AS s ON s.step BETWEEN b.first_step AND b.last_step"""
_SUMS = f"""SELECT count(s.step), coalesce(sum(samples), 0), coalesce(sum(step_ns), 0),
    CASE WHEN count(device_step_ns) = count(s.step) THEN sum({_DEVICE_NS}) END,
    sum(loss), count(loss), max(peak_allocated_bytes), max(peak_reserved_bytes),
    coalesce(max(alloc_retries) - min(alloc_retries), 0), coalesce(sum(flags & ? != 0), 0)
    {_OF_BLOCKS} GROUP BY b.pair, b.position ORDER BY b.pair, b.position"""
_TIMES = f"SELECT b.pair, b.arm = 'B', {{}} {_OF_BLOCKS} LIMIT 1000000"


class DeviceMeans(NamedTuple):
    """The device's samples in some blocks: the mean clock, None without any, and the throttle reasons."""

    sm_clock_mhz: float | None
    throttle_reasons: int


class MeasurementLog(Tables):
    """The measurement tables of one open log, `harness.store.reader.LogReader.measurements`.

    Every method raises LogError as the reader's do.
    """

    since_version = 9

    def stamp(self) -> tuple[int, int, int]:
        """Return the newest version of the settings that is no measurement's, and the newest measurement
        that began and that ended; -1 without any."""
        if not self._is_there:
            return self._queries.numbers("SELECT coalesce(max(version), -1), -1, -1 FROM settings")[0]
        return self._queries.numbers(_STAMP)[0]

    def without_blocks(self, rows: Sequence[SettingsRow]) -> list[SettingsRow]:
        """Return versions of the settings without those of measurements, but for the last of an ended one,
        with the settings before it and without a change."""
        if not self._is_there:
            return list(rows)
        ends = {row.measurement for row in self._rows(MeasurementEndRow, "measurement_ends", _NEWEST, _MOST)}
        measured = {plan.command_id: plan.number in ends for plan in self.plans()}
        last = {row.command_id: row.version for row in rows}
        return [
            row._replace(changed="{}") if row.command_id in measured else row
            for row in rows
            if row.command_id not in measured
            or (measured[row.command_id] and last[row.command_id] == row.version)
        ]

    def plans(self) -> list[MeasurementRow]:
        """Return the newest measurements, in order."""
        rows = self._rows(MeasurementRow, "measurements", "ORDER BY number DESC LIMIT ?", _MOST)
        return rows[::-1]

    def plan(self, number: int) -> MeasurementRow | None:
        """Return one measurement, None where there is none of that number."""
        return next(iter(self._rows(MeasurementRow, "measurements", "WHERE number = ?", number)), None)

    def blocks(self, number: int) -> list[MeasurementBlockRow]:
        """Return the finished blocks of a measurement, in the order of time."""
        rest = f"{_BLOCKS} ORDER BY pair, position LIMIT ?"
        return self._rows(MeasurementBlockRow, "measurement_blocks", rest, number, _MOST_BLOCKS)

    def pairs(self, number: int) -> int:
        """Return the number of finished pairs of a measurement."""
        if not self._is_there:
            return 0
        sql = "SELECT coalesce(max(pair), 0) FROM measurement_blocks WHERE measurement = ?"
        return int(self._queries.numbers(sql, (number,))[0][0])

    def blocks_within(self, first: int, last: int) -> list[MeasurementBlockRow]:
        """Return the newest finished blocks that overlap the steps from `first` to `last`."""
        rest = "WHERE last_step >= ? AND first_step <= ? ORDER BY first_step DESC LIMIT ?"
        return self._rows(MeasurementBlockRow, "measurement_blocks", rest, first, last, _MOST)

    def end(self, number: int) -> MeasurementEndRow | None:
        """Return how a measurement ended, None while it goes on."""
        rest = "WHERE measurement = ?"
        return next(iter(self._rows(MeasurementEndRow, "measurement_ends", rest, number)), None)

    def sums(self, number: int) -> list[BlockSums]:
        """Return the sums over the steps of each of `blocks`."""
        rows = self._queries.numbers(_SUMS, (int(RECORDED_FLAGS), number))
        return [BlockSums._make(row) for row in rows]

    def step_times_ns(self, number: int, *, on_device: bool) -> dict[tuple[int, Arm], list[int]]:
        """Return the durations of the steps by pair and arm; `on_device`: on the device's clock."""
        times_ns: dict[tuple[int, Arm], list[int]] = {}
        sql = _TIMES.format(_DEVICE_NS if on_device else "step_ns")
        for pair, is_changed, value in self._queries.numbers(sql, (number,)):
            if value is not None:
                times_ns.setdefault((pair, Arm.B if is_changed else Arm.A), []).append(value)
        return times_ns

    def device_means(self, device: str, blocks: Iterable[MeasurementBlockRow]) -> DeviceMeans:
        """Return what the samples of `device` during the steps of `blocks` have in common."""
        clocks, reasons = [], 0
        sql = """SELECT sm_clock_mhz, CAST(throttle_reasons AS INTEGER) FROM device_samples
            WHERE device = ? AND step BETWEEN ? AND ? LIMIT 10000"""
        for block in blocks:
            for clock_mhz, bits in self._queries.numbers(sql, (device, block.first_step, block.last_step)):
                clocks += [] if clock_mhz is None else [clock_mhz]
                reasons |= bits or 0
        return DeviceMeans(sum(clocks) / len(clocks) if clocks else None, reasons)

    def cpu_pcts(self, first_step: int, last_step: int) -> list[tuple[float | None, float | None]]:
        """Return the load of the host and of the process, samples during the steps of a range."""
        sql = "SELECT cpu_pct, process_cpu_pct FROM host_samples WHERE step BETWEEN ? AND ? LIMIT 10000"
        return [(host, process) for host, process in self._queries.numbers(sql, (first_step, last_step))]

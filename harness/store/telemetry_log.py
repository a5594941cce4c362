"""Reads the detailed telemetry of a log; older logs have none, so results are empty."""

from harness.records.telemetry import DeviceDetailRow, DeviceProcessRow, HostDetailRow, WorkerSampleRow
from harness.store.overhead_log import OverheadLog
from harness.store.querying import Queries
from harness.store.tables import Tables

# The numbers of the details within a range of steps, through the samples' index on steps.
_RANGE = """SELECT
    (SELECT min(seq) FROM device_details WHERE device = :device AND seq >= (SELECT seq FROM device_samples
        WHERE device = :device AND step >= :first ORDER BY step, seq LIMIT 1)),
    (SELECT max(seq) FROM device_details WHERE device = :device AND seq <= (SELECT seq FROM device_samples
        WHERE device = :device AND step <= :last ORDER BY step DESC, seq DESC LIMIT 1))"""

# Training samples of the unobserved steps in a range. The log has the sum over each block: where only some of
# its steps are in the range, their share of the samples is that of the steps.
_UNOBSERVED = """SELECT sum(samples * (min(last_step, :last) - max(first_step, :first) + 1) /
    (last_step - first_step + 1)) FROM unobserved_steps
    WHERE last_step >= :first AND first_step <= :last"""


class TelemetryLog(Tables):
    """The telemetry tables of one open log, `harness.store.reader.LogReader.telemetry`.

    Every method raises LogError as the reader's do.
    """

    since_version = 3

    def __init__(self, queries: Queries, version: int) -> None:
        super().__init__(queries, version)
        self._has_unobserved = version >= OverheadLog.since_version

    def latest_detail(self, device: str) -> DeviceDetailRow | None:
        """Return the newest details of `device`, None without any."""
        rows = self._rows(
            DeviceDetailRow, "device_details", "WHERE device = ? ORDER BY seq DESC LIMIT 1", device
        )
        return rows[0] if rows else None

    def details(
        self, device: str, first_step: int, last_step: int, max_points: int = 600
    ) -> list[DeviceDetailRow]:
        """Return the details of `device` during the steps, in order: at most `max_points`, evenly spaced,
        always with the first and the last, so that a counter's difference covers the whole range.
        """
        if not self._is_there:
            return []
        parameters = {"device": device, "first": first_step, "last": last_step}
        low, high = self._queries.numbers(_RANGE, parameters)[0]
        if low is None or high is None or high < low:
            return []
        numbers = [*range(low, high, -(-(high - low + 1) // (max_points - 1))), high]
        return self._rows(
            DeviceDetailRow,
            "device_details",
            f"WHERE device = ? AND seq IN ({', '.join('?' * len(numbers))}) ORDER BY seq",
            *(device, *numbers),
        )

    def samples_trained(self, first_step: int, last_step: int) -> int | None:
        """Return the number of training samples of those steps, including unobserved ones; None without a
        step."""
        totals = self._queries.numbers(
            "SELECT sum(samples) FROM steps WHERE step BETWEEN ? AND ?", (first_step, last_step)
        )
        samples: int | None = totals[0][0]
        if samples is None or not self._has_unobserved:
            return samples
        unobserved = self._queries.numbers(_UNOBSERVED, {"first": first_step, "last": last_step})
        return samples + (unobserved[0][0] or 0)

    def processes(self, device: str) -> list[DeviceProcessRow]:
        """Return the processes on `device` at its newest sample, the most memory first."""
        newest = self.latest_detail(device)
        if newest is None or not newest.processes:
            return []
        return self._rows(
            DeviceProcessRow,
            "device_processes",
            "WHERE device = ? AND seq = (SELECT max(seq) FROM device_processes WHERE device = ?) "
            "ORDER BY memory_bytes DESC, pid",
            *(device, device),
        )

    def latest_host(self) -> HostDetailRow | None:
        """Return the newest details of the host, None without any."""
        rows = self._rows(HostDetailRow, "host_details", "ORDER BY seq DESC LIMIT 1")
        return rows[0] if rows else None

    def last_hosts(self, n: int) -> list[HostDetailRow]:
        """Return the last `n` details of the host, the oldest first."""
        return self._rows(HostDetailRow, "host_details", "ORDER BY seq DESC LIMIT ?", n)[::-1]

    def workers(self) -> list[WorkerSampleRow]:
        """Return the newest samples of the loader's workers."""
        return self._rows(
            WorkerSampleRow,
            "worker_samples",
            "WHERE seq = (SELECT max(seq) FROM worker_samples) ORDER BY pid",
        )

"""Reads what a log says about devices and the host beside their samples; in older logs it finds nothing."""

from harness.store.own_cost_log import OwnCostLog
from harness.store.querying import Queries
from harness.store.tables import Tables
from harness.telemetry_records import DeviceDetailRow, DeviceProcessRow, HostDetailRow, WorkerSampleRow

# The numbers of the details within a range of steps, by the index that samples have for it.
_RANGE = """SELECT
    (SELECT min(seq) FROM device_details WHERE device = ?1 AND seq >= (SELECT seq FROM device_samples
        WHERE device = ?1 AND step >= ?2 ORDER BY step, seq LIMIT 1)),
    (SELECT max(seq) FROM device_details WHERE device = ?1 AND seq <= (SELECT seq FROM device_samples
        WHERE device = ?1 AND step <= ?3 ORDER BY step DESC, seq DESC LIMIT 1))"""

# Samples of the steps in a range that were not observed: of a block's steps all have the same.
_UNOBSERVED = """SELECT sum(samples / (last_step - first_step + 1) *
    (min(last_step, ?2) - max(first_step, ?1) + 1)) FROM unobserved_steps
    WHERE last_step >= ?1 AND first_step <= ?2"""


class TelemetryLog(Tables):
    """The telemetry tables of one open log; `harness.store.reader.LogReader.telemetry` hands it out.

    Every method raises LogError as the reader's do.
    """

    since_version = 3

    def __init__(self, queries: Queries, version: int) -> None:
        super().__init__(queries, version)
        self._has_unobserved = version >= OwnCostLog.since_version

    def latest_detail(self, device: str) -> DeviceDetailRow | None:
        """The newest of `device`, None when there is none."""
        found = self._rows(
            DeviceDetailRow, "device_details", "WHERE device = ? ORDER BY seq DESC LIMIT 1", device
        )
        return found[0] if found else None

    def details(
        self, device: str, first_step: int, last_step: int, max_points: int = 600
    ) -> list[DeviceDetailRow]:
        """What `device` said while the steps were under way, in order: at most `max_points`, evenly thinned,
        the first and the last always among them, so that a counter's difference is that of the whole range.
        """
        if not self._is_there:
            return []
        low, high = self._queries.numbers(_RANGE, (device, first_step, last_step))[0]
        if low is None or high is None or high < low:
            return []
        wanted = [*range(low, high, -(-(high - low + 1) // (max_points - 1))), high]
        return self._rows(
            DeviceDetailRow,
            "device_details",
            f"WHERE device = ? AND seq IN ({', '.join('?' * len(wanted))}) ORDER BY seq",
            *(device, *wanted),
        )

    def samples_trained(self, first_step: int, last_step: int) -> int | None:
        """How many samples those steps trained on, those that were not observed included; None without a
        step."""
        found = self._queries.numbers(
            "SELECT sum(samples) FROM steps WHERE step BETWEEN ? AND ?", (first_step, last_step)
        )
        samples: int | None = found[0][0]
        if samples is None or not self._has_unobserved:
            return samples
        return samples + (self._queries.numbers(_UNOBSERVED, (first_step, last_step))[0][0] or 0)

    def processes(self, device: str) -> list[DeviceProcessRow]:
        """Who used `device` at its newest sample, most memory first."""
        newest = self.latest_detail(device)
        if newest is None or not newest.processes:
            return []
        return self._rows(
            DeviceProcessRow,
            "device_processes",
            "WHERE device = ?1 AND seq = (SELECT max(seq) FROM device_processes WHERE device = ?1) "
            "ORDER BY memory_bytes DESC, pid",
            device,
        )

    def latest_host(self) -> HostDetailRow | None:
        """The newest of the host, None when there is none."""
        found = self._rows(HostDetailRow, "host_details", "ORDER BY seq DESC LIMIT 1")
        return found[0] if found else None

    def last_hosts(self, n: int) -> list[HostDetailRow]:
        """The last `n` of the host, oldest first."""
        return self._rows(HostDetailRow, "host_details", "ORDER BY seq DESC LIMIT ?", n)[::-1]

    def workers(self) -> list[WorkerSampleRow]:
        """The loader's workers, each as of the newest look at them."""
        return self._rows(
            WorkerSampleRow,
            "worker_samples",
            "WHERE seq = (SELECT max(seq) FROM worker_samples) ORDER BY pid",
        )

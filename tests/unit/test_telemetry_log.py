"""Test what a log says about devices and the host beside their samples, and that older logs say nothing."""

from pathlib import Path

import pytest

from harness.analysis.machine.energy import energy_use, joules_per_thousand
from harness.demo.machine import FACTS
from harness.demo.writing import write
from harness.records.run import DeviceSampleRow, RunRow, RunState
from harness.records.telemetry import DeviceDetailRow, DeviceProcessRow, HostDetailRow, WorkerSampleRow
from harness.store import appender, schema
from harness.store.appender import LogAppender
from harness.store.home import Home
from harness.store.reader import LogReader

RUN = RunRow("run", "name", 0, "0", "{}", "{}", None, "{}", "host", 0, RunState.RUNNING, "", None)
SILENT = DeviceDetailRow("GPU-1", 0, 0, 0, *(None,) * (len(DeviceDetailRow._fields) - 4))


def detail(seq: int, device: str = "GPU-1", processes: int | None = None) -> DeviceDetailRow:
    return SILENT._replace(
        device=device, seq=seq, t_ns=seq * 10**9, step=seq * 10, energy_j=500.0 * seq, processes=processes
    )


def sample(seq: int) -> DeviceSampleRow:
    return DeviceSampleRow("GPU-1", seq, seq * 10**9, seq * 10, *(None,) * 10)


def process(seq: int, pid: int, memory_bytes: int) -> DeviceProcessRow:
    return DeviceProcessRow("GPU-1", seq, pid, seq * 10**9, "python", memory_bytes, 0)


def host(seq: int) -> HostDetailRow:
    return HostDetailRow(seq, seq * 10**9, 0, 2, 55.0, 1.0, 2.0, 3.0, 4.0, 2_000_000, 900_000, 0.09)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.sqlite3"


def test_rows_come_back_as_they_were_written(path: Path) -> None:
    workers = [WorkerSampleRow(4, 11, 0, 50.0, 7), WorkerSampleRow(9, 12, 0, 60.0, 8)]
    with LogAppender(path, RUN) as log:
        log.append(rows=[detail(0), detail(1), detail(0, "GPU-2"), host(0), host(1), *workers])
    with LogReader(path) as log:
        assert log.telemetry.latest_detail("GPU-1") == detail(1)
        assert log.telemetry.latest_detail("GPU-2") == detail(0, "GPU-2")
        assert log.telemetry.latest_detail("GPU-3") is None
        assert log.telemetry.latest_host() == host(1)
        assert log.telemetry.last_hosts(9) == [host(0), host(1)]
        assert log.telemetry.workers() == workers[1:]


def test_a_thinned_range_keeps_its_first_and_last_row(path: Path) -> None:
    with LogAppender(path, RUN) as log:
        log.append(rows=[row(seq) for seq in range(100) for row in (sample, detail)])
    with LogReader(path) as log:
        for points in (3, 10, 33, 600):
            rows = log.telemetry.details("GPU-1", 50, 905, points)
            assert len(rows) <= points
            assert (rows[0].seq, rows[-1].seq) == (5, 90)
        assert log.telemetry.details("GPU-1", 5_000, 6_000) == []
        assert log.telemetry.details("GPU-2", 0, 900) == []


def test_a_device_lost_on_the_way_keeps_its_last_row(path: Path) -> None:
    with LogAppender(path, RUN) as log:
        log.append(rows=[sample(seq) for seq in range(100)])
        log.append(rows=[detail(seq) for seq in range(40)])
    with LogReader(path) as log:
        assert [row.seq for row in log.telemetry.details("GPU-1", 0, 990, 3)][-1] == 39


def test_processes_are_those_of_the_newest_change(path: Path) -> None:
    with LogAppender(path, RUN) as log:
        log.append(rows=[detail(0, processes=1), process(0, 7, 10)])
        log.append(rows=[detail(1, processes=2), process(1, 7, 10), process(1, 8, 90)])
        log.append(rows=[detail(2, processes=2)])
    with LogReader(path) as log:
        assert [row.pid for row in log.telemetry.processes("GPU-1")] == [8, 7]


def test_a_device_that_everybody_left_has_no_processes(path: Path) -> None:
    with LogAppender(path, RUN) as log:
        log.append(rows=[detail(0, processes=1), process(0, 7, 10), detail(1, processes=0)])
    with LogReader(path) as log:
        assert log.telemetry.processes("GPU-1") == []


@pytest.mark.parametrize("version", [1, 2])
def test_a_log_without_these_tables_tells_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(appender, "LOG_MIGRATIONS", schema.LOG_MIGRATIONS[:version])
    with LogAppender(path, RUN):
        pass
    with LogReader(path) as log:
        assert log.run() == RUN
        assert log.telemetry.latest_detail("GPU-1") is None
        assert log.telemetry.details("GPU-1", 0, 10) == []
        assert log.telemetry.processes("GPU-1") == []
        assert log.telemetry.latest_host() is None
        assert log.telemetry.workers() == []


def test_a_simulated_run_tells_what_its_card_used(tmp_path: Path) -> None:
    folder = write("steady", Home(tmp_path), steps=400)
    device = FACTS.uuid or ""
    with LogReader(folder.log) as log:
        rows = log.telemetry.details(device, 0, 400)
        use = energy_use(rows)
        assert use is not None
        samples = log.telemetry.samples_trained(use.first_step + 1, use.last_step)
        assert joules_per_thousand(use, samples) is not None
        assert [process.is_own for process in log.telemetry.processes(device)] == [1]
        assert log.telemetry.samples_trained(5_000, 6_000) is None
        power_w = [row.power_w or 0.0 for row in log.latest_device_samples()]
        assert 0.5 < use.joules / (use.duration_ns / 1e9) / power_w[0] < 2

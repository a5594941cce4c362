import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from harness.device.host.probe import CpuLoad, CpuTelemetry, HostProbe
from harness.device.host.rss import PeakRss, RssGauge, status_bytes

MIB = 1 << 20


class Times(NamedTuple):
    user: float
    system: float
    idle: float
    iowait: float
    guest: float
    guest_nice: float


def test_load_is_the_busy_share_since_the_last_look() -> None:
    history = [Times(0, 0, 0, 0, 0, 0), Times(3, 1, 4, 2, 1, 0), Times(3, 1, 14, 2, 1, 0)]
    load = CpuLoad(lambda: history.pop(0))
    assert load.take() == 40.0
    assert load.take() == 0.0


def test_load_is_missing_when_the_counters_have_not_moved() -> None:
    load = CpuLoad(lambda: Times(1, 1, 1, 1, 0, 0))
    assert load.take() is None


def test_two_loads_do_not_take_each_others_history() -> None:
    first, second, last = CpuLoad(), CpuLoad(), CpuLoad()
    while last.take() is None:  # Until the counters have moved since all three began.
        time.sleep(0.01)
    assert first.take() is not None
    assert second.take() is not None


def test_the_process_share_counts_a_hundred_for_a_busy_core() -> None:
    now_ns = [0]
    probe = HostProbe(list, lambda: now_ns[0])
    before = time.process_time()
    while time.process_time() - before < 0.2:
        sum(range(1000))
    now_ns[0] = 200_000_000
    share = probe.sample().process_cpu_pct
    assert share is not None
    assert 80 < share < 160


def test_a_sample_tells_the_hosts_memory_and_this_process() -> None:
    sample = HostProbe(list).sample()
    assert sample.ram_total_bytes == psutil.virtual_memory().total
    assert sample.ram_used_bytes is not None
    assert 0 < sample.ram_used_bytes < sample.ram_total_bytes
    assert sample.rss_bytes is not None
    assert sample.rss_bytes > 20 * MIB
    assert sample.workers_rss_bytes is None


def test_workers_memory_is_summed_and_the_dead_are_left_out() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        alone = HostProbe(lambda: [worker.pid]).sample().workers_rss_bytes
        both = HostProbe(lambda: [worker.pid, gone.pid]).sample().workers_rss_bytes
        assert alone is not None
        assert alone > MIB
        assert both is not None
        assert HostProbe(lambda: [gone.pid]).sample().workers_rss_bytes is None
        worker.communicate(b"\n")


def test_the_rss_peak_is_that_of_its_window() -> None:
    peak = PeakRss()
    peak.take()
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    del block
    with_block, without = peak.take(), peak.take()
    assert with_block is not None
    assert without is not None
    assert with_block - without > 48 * MIB


def test_a_kernel_without_resettable_peak_leaves_it_missing(tmp_path: Path) -> None:
    (tmp_path / "status").write_text("VmHWM:\t  2048 kB\n")
    assert PeakRss(tmp_path / "nowhere").take() is None


def test_a_field_of_the_status_file_is_read_in_bytes(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_bytes("Name:\tä".encode()[:-1] + b"\nVmData:\t  2048 kB\n")
    assert status_bytes("VmData", status) == 2 * MIB
    assert status_bytes("VmSwap", status) is None
    assert status_bytes("VmData", tmp_path / "missing") is None


def test_the_rss_is_read_at_most_every_ten_milliseconds() -> None:
    now_ns = [0]
    gauge = RssGauge(lambda: now_ns[0])
    first = gauge.read()
    block = bytearray(64 * MIB)
    block[::4096] = b"x" * len(block[::4096])
    assert gauge.read() == first
    now_ns[0] = 10_000_000
    assert gauge.read() - first > 48 * MIB
    assert len(block) == 64 * MIB


def test_the_rss_agrees_with_psutil() -> None:
    assert abs(RssGauge().read() - psutil.Process().memory_info().rss) < 8 * MIB


def test_cpu_telemetry_draws_nothing_unavailable_as_zero() -> None:
    telemetry = CpuTelemetry()
    (sample,) = telemetry.sample()
    telemetry.close()
    assert sample.device == "cpu"
    assert sample.memory_total_bytes == psutil.virtual_memory().total
    assert sample.power_w is None
    assert sample.sm_clock_mhz is None
    assert sample.throttle_reasons is None

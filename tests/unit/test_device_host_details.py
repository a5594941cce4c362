"""Workers, disk and network of the host, as rates since the look before."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.device.host.details import (
    HostDetailProbe,
    Rates,
    host_disk_counters,
    network_counters,
    sees_machine_pids,
)

SECOND_NS = 1_000_000_000
BUSY = "while True: sum(range(1000))"


def test_a_rate_is_the_gain_over_the_time() -> None:
    now_ns = [0]
    rates = Rates(lambda: now_ns[0])
    assert rates.take({"a": 10.0, "b": 5.0}) == {}
    now_ns[0] = 2 * SECOND_NS
    assert rates.take({"a": 30.0, "b": 4.0, "c": 1.0}) == {"a": 10.0}
    now_ns[0] = 3 * SECOND_NS
    assert rates.take({"b": 6.0}) == {"b": 2.0}


def test_no_time_between_two_looks_gives_no_rate() -> None:
    rates = Rates(lambda: 7)
    rates.take({"a": 1.0})
    assert rates.take({"a": 2.0}) == {}


def test_what_this_process_writes_to_disk_is_counted(tmp_path: Path) -> None:
    now_ns = [0]
    probe = HostDetailProbe(list, lambda: now_ns[0])
    with (tmp_path / "block").open("wb") as file:
        file.write(b"x" * (8 << 20))
        file.flush()
        os.fsync(file.fileno())
    now_ns[0] = 2 * SECOND_NS
    details = probe.read()
    assert details.workers == ()
    if details.disk_written_bytes_per_s is None:
        pytest.skip("this system does not tell what a process writes")
    assert 0 <= details.disk_written_bytes_per_s <= 64 << 20


def test_workers_are_told_one_by_one_from_the_second_look_on() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) as worker:
        now_ns = [0]
        pids = [worker.pid, 2**22 - 7]
        probe = HostDetailProbe(lambda: pids, lambda: now_ns[0])
        now_ns[0] = SECOND_NS
        (first,) = probe.read().workers
        assert (first.pid, first.cpu_pct) == (worker.pid, None)
        assert first.rss_bytes is not None
        before = psutil.Process(worker.pid).cpu_times().user
        while psutil.Process(worker.pid).cpu_times().user - before < 0.05:
            pass
        now_ns[0] = 2 * SECOND_NS
        (second,) = probe.read().workers
        assert second.cpu_pct is not None
        assert second.cpu_pct > 0
        worker.kill()
        worker.wait()
        assert probe.read().workers == ()
        pids.clear()
        assert probe.read().workers == ()


def test_network_and_disks_are_told_by_the_host() -> None:
    assert set(network_counters()) in ({"received", "sent"}, set())
    assert set(host_disk_counters()) in ({"read", "written"}, set())


def test_a_container_is_told_from_the_machine(tmp_path: Path) -> None:
    link = tmp_path / "pid"
    link.symlink_to("pid:[4026531836]")
    assert sees_machine_pids(link)
    inside = tmp_path / "inside"
    inside.symlink_to("pid:[4026532999]")
    assert not sees_machine_pids(inside)
    assert not sees_machine_pids(tmp_path / "nowhere")

"""The cores that the affinity and the control groups of a process leave to it."""

import os
from pathlib import Path

import pytest

from harness.device.host import cores
from harness.device.host.cores import quota_cores, usable_cores
from tests.unit.test_host_memory import write


def test_the_tightest_quota_of_a_group_and_its_ancestors_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/pod/one\n")
    write(tmp_path, "sys/fs/cgroup/pod/one/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/pod/cpu.max", "250000 100000\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "800000 100000\n")
    assert quota_cores(tmp_path) == 2.5


@pytest.mark.parametrize(("quota", "expected"), [("400000", 4.0), ("-1", None)])
def test_a_quota_of_version_1_has_its_period_beside_it(
    tmp_path: Path, quota: str, expected: float | None
) -> None:
    write(tmp_path, "proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert quota_cores(tmp_path) == expected


def test_without_a_group_there_is_no_quota(tmp_path: Path) -> None:
    assert quota_cores(tmp_path) is None


@pytest.mark.parametrize(("quota", "expected"), [(0.2, 1), (1.5, 2), (1e6, None), (None, None)])
def test_a_quota_is_rounded_up_and_leaves_no_more_cores_than_the_affinity(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(cores, "quota_cores", lambda: quota)
    assert usable_cores() == (expected or 8)

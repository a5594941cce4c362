"""The memory that the control groups of a process leave to it."""

import os
from pathlib import Path

import psutil
import pytest

from harness.device.host.memory import HostMemory, MemoryGroups, read_host_memory

MIB, GIB = 1 << 20, 1 << 30
MACHINE = HostMemory(64 * GIB, 48 * GIB)


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def read(root: Path) -> HostMemory:
    return MemoryGroups(root).read(MACHINE)


def test_the_tightest_limit_of_a_group_and_its_ancestors_counts(tmp_path: Path) -> None:
    one = os.fsdecode(b"j\xe4n")  # The name of a group is any bytes.
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_bytes(os.fsencode(f"0::/jobs/{one}\n"))
    write(tmp_path, f"sys/fs/cgroup/jobs/{one}/memory.max", "max\n")
    write(tmp_path, "sys/fs/cgroup/jobs/memory.max", f"{2 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{4 * GIB}\n")
    assert read(tmp_path) == (2 * GIB, 2 * GIB)


def test_a_version_1_limit_counts_too(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    group = "sys/fs/cgroup/memory/docker/abc"
    write(tmp_path, f"{group}/memory.limit_in_bytes", f"{GIB}\n")
    write(tmp_path, f"{group}/memory.usage_in_bytes", f"{900 * MIB}\n")
    stat = {"inactive_file": 1, "active_file": 2, "total_inactive_file": 100, "total_active_file": 20}
    lines = (f"{name} {size * MIB}\n" for name, size in stat.items())
    write(tmp_path, f"{group}/memory.stat", "".join(lines))
    assert read(tmp_path) == (GIB, 244 * MIB)


@pytest.mark.parametrize("membership", ["0::/\n", "5:cpu:/\n", ""])
def test_without_a_limit_it_is_that_of_the_machine(tmp_path: Path, membership: str) -> None:
    write(tmp_path, "proc/self/cgroup", membership)
    assert read(tmp_path) == MACHINE


def test_so_it_is_on_a_system_without_groups(tmp_path: Path) -> None:
    assert read(tmp_path) == MACHINE


def test_free_memory_is_what_the_tightest_group_has_left_with_reclaimable_cache(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/jobs\n")
    write(tmp_path, "sys/fs/cgroup/jobs/memory.max", f"{100 * MIB}\n")
    write(tmp_path, "sys/fs/cgroup/jobs/memory.current", f"{90 * MIB}\n")
    write(tmp_path, "sys/fs/cgroup/jobs/memory.stat", f"inactive_file {15 * MIB}\nactive_file {5 * MIB}\n")
    assert read(tmp_path) == (100 * MIB, 30 * MIB)
    assert read(tmp_path).used_bytes == 70 * MIB
    write(tmp_path, "sys/fs/cgroup/jobs/memory.current", f"{500 * MIB}\n")
    assert read(tmp_path).free_bytes == 0


def test_a_group_with_room_leaves_no_more_than_the_machine_has(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", f"{60 * GIB}\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", f"{GIB}\n")
    assert read(tmp_path) == (60 * GIB, 48 * GIB)


def test_of_this_process_it_is_at_most_that_of_the_machine() -> None:
    memory = read_host_memory()
    assert 0 < memory.free_bytes < memory.total_bytes <= psutil.virtual_memory().total

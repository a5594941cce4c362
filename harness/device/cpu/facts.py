"""The fixed properties of the CPU: its name, the usable memory, and torch's capabilities on it."""

import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

import psutil

from harness.device.cpu.heap import Heap
from harness.records.run import AmpMode, DeviceFacts, DeviceKind

_COMPILERS = ("g++", "clang++", "c++")


def cpu_facts(heap: Heap | None) -> DeviceFacts:
    """Return the CPU's facts; `heap` is None when malloc cannot be read, trimmed and capped.

    float16 is not among the AMP modes: CPUs compute it slowly or not at all, and GradScaler's loss scaling is
    made for GPUs.
    """
    return DeviceFacts(
        kind=DeviceKind.CPU,
        ordinal=None,
        uuid=None,
        name=cpu_name(),
        memory_bytes=usable_memory_bytes(),
        capability=None,
        multiprocessors=usable_cores(),
        power_limit_w=None,
        amp_modes=(AmpMode.OFF, AmpMode.BF16),
        can_pin=False,
        can_trim=heap is not None,
        can_cap=heap is not None and sys.platform == "linux",
        can_compile=compile_obstacle() is None,
    )


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model name, or its architecture if that is unavailable."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip() not in ("", "unknown"):
            return " ".join(value.split())
    return platform.processor() or platform.machine() or "CPU"


def usable_cores() -> int | None:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def usable_memory_bytes() -> int:
    """Return the RAM, or the control group's limit if that is lower (containers)."""
    total = int(psutil.virtual_memory().total)
    limit = cgroup_limit_bytes()
    return total if limit is None else min(total, limit)


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that is available to new processes, which a control group may limit further."""
    free = int(psutil.virtual_memory().available)
    for limit_file in _limit_files(root):
        limit, used = _limit(limit_file), _used_bytes(limit_file.parent)
        if limit is not None and used is not None:
            free = min(free, max(0, limit - used))
    return free


def cgroup_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the lowest memory limit among this process's control groups and their ancestors, v2 or v1; None
    without a limit. `root` is the file system's root (a folder in tests)."""
    limits = map(_limit, _limit_files(root))
    return min((limit for limit in limits if limit is not None), default=None)


def _limit_files(root: Path) -> list[Path]:
    """Return the files with the memory limits of this process's control groups and their ancestors."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers == "":
            hierarchy, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            hierarchy, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = hierarchy / path.strip("/")
        for folder in (group, *group.parents):
            files.append(folder / name)
            if folder == hierarchy:
                break
    return files


def _used_bytes(group: Path) -> int | None:
    """Return the memory in use by a control group, without the file cache that the kernel can reclaim."""
    used = next(filter(None, map(_limit, (group / "memory.current", group / "memory.usage_in_bytes"))), None)
    if used is None:
        return None
    try:
        pairs = [line.split() for line in (group / "memory.stat").read_text().splitlines()]
        stat = {name: int(value) for name, value in pairs}
    except (OSError, ValueError):
        return used
    return used - stat.get("total_inactive_file", stat.get("inactive_file", 0))


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def compile_obstacle() -> str | None:
    """Return the reason that torch.compile is unavailable on the CPU, with what to do, or None.

    TorchInductor generates C++ that includes Python.h. torch 2.13 rejects Python 3.15 and newer.
    """
    if sys.version_info >= (3, 15):
        return f"torch.compile does not support Python {platform.python_version()}; use Python 3.14 or older."
    if not any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", *_COMPILERS)):
        return "torch.compile needs a C++ compiler, and there is none; install g++ or clang++."
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        return f"torch.compile needs {header}; install Python's development package (python3-dev)."
    return None

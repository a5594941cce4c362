"""The processor cores that this process can use."""

import math
import os
from pathlib import Path

from harness.device.host.control_groups import group_files, read_numbers


def usable_cores() -> int | None:
    """Return the number of cores that this process may run on at once: those of its affinity, or fewer where
    its control groups have a quota of processor time, which is rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = quota_cores()
    return cores if cores is None or quota is None else min(cores, max(1, math.ceil(quota)))


def quota_cores(root: Path = Path("/")) -> float | None:
    """Return the processor time per time that the tightest control group permits, in cores; None without a
    quota. `root` is the file system's root (a folder in tests)."""
    quotas = map(_quota, group_files("cpu", "cpu.max", "cpu.cfs_quota_us", root))
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(path: Path) -> float | None:
    numbers = read_numbers(path)  # Version 2 has the period in the same file.
    if numbers is not None and len(numbers) == 1:
        numbers += read_numbers(path.with_name("cpu.cfs_period_us")) or []
    if numbers is None or len(numbers) < 2 or not numbers[1]:
        return None
    return numbers[0] / numbers[1]

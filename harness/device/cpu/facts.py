"""The fixed properties of the CPU: its name, the usable memory, and torch's capabilities on it."""

import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

from harness.device.cpu.heap import Heap
from harness.device.host.cores import usable_cores
from harness.device.host.memory import read_host_memory
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
        memory_bytes=read_host_memory().total_bytes,
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

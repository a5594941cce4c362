"""A device's memory by process: the share of this process, and that of all processes."""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import psutil

from harness.analysis.oom.error import own_size
from harness.device.host.details import sees_machine_pids
from harness.device.host.memory import read_host_memory
from harness.device.nvml.driver import Nvml
from harness.device.nvml.queries import LostDeviceError, NvmlQueries, Query
from harness.device.nvml.telemetry import memory_bytes
from harness.device.protocol import MemoryInfo


class DeviceShare(NamedTuple):
    """A device's memory in bytes; None: unavailable."""

    # Used by this process, context and libraries included; on the CPU its RSS.
    process_bytes: int | None
    # Used by all processes.
    used_bytes: int | None
    total_bytes: int | None


class MemoryShare(Protocol):
    """A source of `DeviceShare`, for the sampler's thread."""

    def read(self) -> DeviceShare:
        """Return the current share."""
        ...

    def close(self) -> None:
        """Release its resources. Idempotent."""
        ...


class RamShare:
    """The share of the RAM that this process can use."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def read(self) -> DeviceShare:
        """Return this process's RSS, and the RAM that is not available without swapping: at least the RSS, as
        a control group counts its pages of files only in part."""
        memory, rss_bytes = read_host_memory(), int(self._process.memory_info().rss)
        used_bytes = min(max(memory.used_bytes, rss_bytes), memory.total_bytes)
        return DeviceShare(rss_bytes, used_bytes, memory.total_bytes)

    def close(self) -> None:
        """Do nothing."""


class UnknownShare:
    """The share of a device without a source."""

    def read(self) -> DeviceShare:
        """Return only None."""
        return DeviceShare(None, None, None)

    def close(self) -> None:
        """Do nothing."""


class FreeMemoryShare:
    """The share of a GPU that reports only its free memory."""

    def __init__(self, read_memory_info: Callable[[], MemoryInfo]) -> None:
        self._read_memory_info = read_memory_info

    def read(self) -> DeviceShare:
        """Return the memory of all processes, without the share of this one."""
        free, total = self._read_memory_info()
        return DeviceShare(None, None if free is None or total is None else total - free, total)

    def close(self) -> None:
        """Do nothing."""


class NvmlShare:
    """The share of a GPU, from NVML. Owns `nvml`."""

    def __init__(
        self,
        nvml: Nvml,
        uuid: str,
        reserved_bytes: Callable[[], int | None],
        pid: int | None = None,
        has_machine_pids: bool | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`pid` is that of this process by default. In a container (`has_machine_pids` is false) the driver
        lists pids of the host: this process is then matched by the memory of its allocator, `reserved_bytes`,
        and without a match its share is unknown."""
        self._nvml = nvml
        self._pid = os.getpid() if pid is None else pid
        self._reserved_bytes = reserved_bytes
        self._has_machine_pids = sees_machine_pids() if has_machine_pids is None else has_machine_pids
        handle = nvml.handle(uuid)
        queries = (Query(("used", "total"), memory_bytes), Query(("process",), self._own_bytes))
        self._queries = None if handle is None else NvmlQueries(nvml.library, handle, queries, clock_ns)

    def read(self) -> DeviceShare:
        """Return the driver's figures; None for all once the device is lost."""
        if self._queries is None:
            return DeviceShare(None, None, None)
        try:
            values = self._queries.run()
        except LostDeviceError:
            self._queries = None
            return DeviceShare(None, None, None)
        return DeviceShare(values.get("process"), values.get("used"), values.get("total"))

    def close(self) -> None:
        """Release NVML. Idempotent."""
        self._queries = None
        self._nvml.close()

    def _own_bytes(self, lib: Any, handle: Any) -> tuple[int | None]:
        reserved_bytes = self._reserved_bytes()
        processes = lib.nvmlDeviceGetComputeRunningProcesses(handle)
        for process in processes:
            if process.pid == self._pid:
                return (None if process.usedGpuMemory is None else int(process.usedGpuMemory),)
        sizes = [int(process.usedGpuMemory) for process in processes if process.usedGpuMemory is not None]
        if self._has_machine_pids or len(sizes) < len(processes):
            return (None,)
        return (own_size(sizes, reserved_bytes),)

"""Whose a device's memory is: this process's part of it, and all processes' together."""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import psutil

from harness.analysis.oom.error import own_size
from harness.device.host_details import sees_machine_pids
from harness.device.nvml import Nvml
from harness.device.nvml_queries import LostDeviceError, Query, Questions
from harness.device.nvml_telemetry import memory_bytes
from harness.device.protocol import RoomReading


class DeviceShare(NamedTuple):
    """A device's memory in bytes; None where it is not told."""

    # Held by this process, context and libraries included; on the CPU its RSS.
    process_bytes: int | None
    # Held by all processes.
    used_bytes: int | None
    total_bytes: int | None


class MemoryShare(Protocol):
    """Asks for it, from the sampler's thread."""

    def read(self) -> DeviceShare:
        """As it is now."""
        ...

    def close(self) -> None:
        """Release what is behind it. Idempotent."""
        ...


class RamShare:
    """Of the machine's RAM."""

    def __init__(self) -> None:
        self._process = psutil.Process()

    def read(self) -> DeviceShare:
        """This process's RSS, and the RAM that cannot be had without swapping."""
        ram = psutil.virtual_memory()
        return DeviceShare(
            int(self._process.memory_info().rss), int(ram.total - ram.available), int(ram.total)
        )

    def close(self) -> None:
        """Nothing to release."""


class NoShare:
    """Nobody can be asked."""

    def read(self) -> DeviceShare:
        """Nothing is known."""
        return DeviceShare(None, None, None)

    def close(self) -> None:
        """Nothing to release."""


class RoomShare:
    """Of a GPU that only tells how much of it is free."""

    def __init__(self, read_room: Callable[[], RoomReading]) -> None:
        self._read_room = read_room

    def read(self) -> DeviceShare:
        """What all processes hold; this one's part is not told."""
        free, total = self._read_room()
        return DeviceShare(None, None if free is None or total is None else total - free, total)

    def close(self) -> None:
        """Nothing to release."""


class NvmlShare:
    """Of a GPU, by NVML. Owns `nvml`."""

    def __init__(
        self,
        nvml: Nvml,
        uuid: str,
        reserved_bytes: Callable[[], int | None],
        pid: int | None = None,
        has_machine_pids: bool | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`pid` is that of the process asked about: this one's. In a container, where process numbers are not
        the machine's (`has_machine_pids`), the driver lists the host's: this process is then found by what
        its allocator holds, `reserved_bytes`, and where it is not, its share is not known."""
        self._nvml = nvml
        self._pid = os.getpid() if pid is None else pid
        self._reserved_bytes = reserved_bytes
        self._has_machine_pids = sees_machine_pids() if has_machine_pids is None else has_machine_pids
        handle = nvml.handle(uuid)
        queries = (Query(("used", "total"), memory_bytes), Query(("process",), self._own_bytes))
        self._questions = None if handle is None else Questions(nvml.library, handle, queries, clock_ns)

    def read(self) -> DeviceShare:
        """What the driver tells; nothing once the device is lost."""
        if self._questions is None:
            return DeviceShare(None, None, None)
        try:
            told = self._questions.ask()
        except LostDeviceError:
            self._questions = None
            return DeviceShare(None, None, None)
        return DeviceShare(told.get("process"), told.get("used"), told.get("total"))

    def close(self) -> None:
        """Let go of NVML. Idempotent."""
        self._questions = None
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

"""Whose a device's memory is: this process's part of it, and all processes' together."""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import psutil

from harness.device.nvml import Nvml
from harness.device.nvml_queries import LostDeviceError, Query, Questions
from harness.device.nvml_telemetry import memory_bytes
from harness.device.protocol import RoomReading


class DeviceShare(NamedTuple):
    """A device's memory in bytes; None where it is not told."""

    process_bytes: int | None
    """Held by this process, context and libraries included; on the CPU its RSS."""
    used_bytes: int | None
    """Held by all processes."""
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
        pid: int | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`pid` is that of the process asked about, as the driver knows it: this one's. In a container the
        driver tells the host's numbers, among which this one is not found, and the share is not known."""
        self._nvml = nvml
        self._pid = os.getpid() if pid is None else pid
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
        for process in lib.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == self._pid and process.usedGpuMemory is not None:
                return (int(process.usedGpuMemory),)
        return (None,)

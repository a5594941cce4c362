"""NVML without a driver: an object shaped like the module `pynvml`, with errors on demand.

A contract test holds its functions to the installed module's. Errors and constants are the module's own. The
values are plausible for an H200, not recorded from one.
"""
# The functions bear the real module's names and do what it documents.
# ruff: noqa: N802, D102

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pynvml


@dataclass
class FakeGpu:
    """One GPU's answers, in NVML's own units: per cent, bytes, milliwatts, °C, MHz."""

    uuid: str = "GPU-00000000-0000-0000-0000-00000000fa4e"
    util: int = 87
    memory_util: int = 41
    total: int = 143_771 << 20
    reserved: int = 610 << 20
    used: int = 20_000 << 20
    power_mw: int = 512_300
    power_limit_mw: int = 700_000
    temperature: int = 54
    sm_clock: int = 1980
    memory_clock: int = 3201
    reasons: int = 0x4


class FakeNvml:
    """Pass it as `library` to `harness.device.nvml.Nvml`.

    `fail(function, error)` makes a function raise until `heal(function)`; `on_call` sees every call's name
    and may move a fake clock.
    """

    def __init__(
        self,
        gpus: Sequence[FakeGpu] = (FakeGpu(),),
        driver: str = "580.95.05",
        cuda: int = 13000,
        on_call: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._gpus = gpus
        self._driver = driver
        self._cuda = cuda
        self._on_call = on_call
        self._failures: dict[str, Exception] = {}
        self.calls: list[str] = []
        self.users = 0

    def __getattr__(self, name: str) -> Any:
        """The real module's errors and constants; not its functions."""
        if name.startswith(("NVMLError", "NVML_", "nvmlMemory_")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def fail(self, function: str, error: str) -> None:
        """From now on `function` raises `NVMLError_<error>`, as in fail("nvmlInit", "LibraryNotFound")."""
        self._failures[function] = getattr(pynvml, f"NVMLError_{error}")()

    def heal(self, function: str) -> None:
        """Let `function` answer again."""
        del self._failures[function]

    def _enter(self, function: str) -> None:
        self.calls.append(function)
        self._on_call(function)
        if function in self._failures:
            raise self._failures[function]

    def nvmlInit(self) -> None:
        self._enter("nvmlInit")
        self.users += 1

    def nvmlShutdown(self) -> None:
        self._enter("nvmlShutdown")
        self.users -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._enter("nvmlSystemGetDriverVersion")
        return self._driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._enter("nvmlSystemGetCudaDriverVersion_v2")
        return self._cuda

    def nvmlDeviceGetCount(self) -> int:
        self._enter("nvmlDeviceGetCount")
        return len(self._gpus)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        self._enter("nvmlDeviceGetHandleByUUID")
        for gpu in self._gpus:
            if gpu.uuid == uuid:
                return gpu
        raise pynvml.NVMLError_NotFound()

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> SimpleNamespace:
        self._enter("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=handle.util, memory=handle.memory_util)

    def nvmlDeviceGetMemoryInfo(self, handle: FakeGpu, version: int | None = None) -> SimpleNamespace:
        self._enter("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo")
        used = handle.used if version else handle.used + handle.reserved
        return SimpleNamespace(total=handle.total, used=used)

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:
        self._enter("nvmlDeviceGetPowerUsage")
        return handle.power_mw

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: FakeGpu) -> int:
        self._enter("nvmlDeviceGetEnforcedPowerLimit")
        return handle.power_limit_mw

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:
        self._enter("nvmlDeviceGetTemperature")
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return handle.temperature

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, type: int) -> int:
        self._enter("nvmlDeviceGetClockInfo")
        return {pynvml.NVML_CLOCK_SM: handle.sm_clock, pynvml.NVML_CLOCK_MEM: handle.memory_clock}[type]

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: FakeGpu) -> int:
        self._enter("nvmlDeviceGetCurrentClocksEventReasons")
        return handle.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeGpu) -> int:
        self._enter("nvmlDeviceGetCurrentClocksThrottleReasons")
        return handle.reasons

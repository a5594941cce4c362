"""NVML without a driver: an object with the interface of the module `pynvml`, with errors on demand.

A contract test compares its functions with the installed module's. Errors and constants are the module's own.
The values are plausible for an H200, not recorded from one.
"""
# The functions have the names and the documented behavior of the real module.
# ruff: noqa: N802, N803, D102, ARG002

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

from harness.device.nvml.details import FIELDS


@dataclass
class FakeGpu:
    """The values of one GPU, in NVML's units: percent, bytes, milliwatts, °C, MHz; cumulative millijoules,
    bytes and nanoseconds. A field number that is not in `fields` is unsupported; `field_types` overrides the
    type of a field, unsigned long long by default."""

    uuid: str = "GPU-00000000-0000-0000-0000-00000000fa4e"
    name: str = "NVIDIA H200 (fake)"
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
    energy_mj: int = 90_000_000
    pcie_kb_per_s: tuple[int, int] = (2_000, 40_000)
    ecc: tuple[int, int] = (3, 0)
    fields: dict[int, int] = field(
        default_factory=lambda: {
            FIELDS["NVML_FI_DEV_PERF_POLICY_POWER"]: 12_000_000_000,
            FIELDS["NVML_FI_DEV_PERF_POLICY_SYNC_BOOST"]: 0,
            FIELDS["NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN"]: 0,
            FIELDS["NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN"]: 0,
            FIELDS["NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN"]: 0,
        }
    )
    field_types: dict[int, int] = field(default_factory=dict)
    violations_ns: tuple[int, int] = (7_000_000_000, 0)
    compute: list[tuple[int, int | None]] = field(default_factory=lambda: [(4711, 19_000 << 20)])
    graphics: list[tuple[int, int | None]] = field(default_factory=list)
    has_gpm: bool = True
    gpm: dict[int, float] = field(
        default_factory=lambda: {
            pynvml.NVML_GPM_METRIC_SM_UTIL: 82.5,
            pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 41.0,
            pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 36.0,
            pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 47.0,
            pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: 2.5,
            pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: 40.0,
        }
    )


class FakeNvml:
    """Pass it as `library` to `harness.device.nvml.driver.Nvml`.

    `fail(function, error)` makes a function raise until `heal(function)`; `on_call` receives the name of
    every call and may advance a fake clock.
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
        self._gpm: dict[int, float] = {}
        # GPM samples allocated and not freed.
        self.gpm_samples = 0

    def __getattr__(self, name: str) -> Any:
        """Return the real module's errors, constants and structures, not its functions."""
        if name.startswith(("NVMLError", "NVML_", "nvmlMemory_", "c_nvmlGpm")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def fail(self, function: str, error: str) -> None:
        """Make `function` raise `NVMLError_<error>`, as in fail("nvmlInit", "LibraryNotFound")."""
        self._failures[function] = getattr(pynvml, f"NVMLError_{error}")()

    def heal(self, function: str) -> None:
        """Make `function` succeed again."""
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

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        self._enter("nvmlDeviceGetHandleByIndex")
        return self._gpus[index]

    def nvmlDeviceGetUUID(self, handle: FakeGpu) -> str:
        self._enter("nvmlDeviceGetUUID")
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu) -> str:
        self._enter("nvmlDeviceGetName")
        return handle.name

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeGpu) -> int:
        self._enter("nvmlDeviceGetTotalEnergyConsumption")
        return handle.energy_mj

    def nvmlDeviceGetFieldValues(self, handle: FakeGpu, fieldIds: Sequence[int]) -> Any:
        self._enter("nvmlDeviceGetFieldValues")
        values = (pynvml.c_nvmlFieldValue_t * len(fieldIds))()
        for value, number in zip(values, fieldIds, strict=True):
            value.fieldId = number
            value.valueType = handle.field_types.get(number, pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG)
            if number in handle.fields:
                value.value.ullVal = handle.fields[number]
            else:
                value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return values

    def nvmlDeviceGetPcieThroughput(self, device: FakeGpu, counter: int) -> int:
        self._enter("nvmlDeviceGetPcieThroughput")
        sent, received = device.pcie_kb_per_s
        return {pynvml.NVML_PCIE_UTIL_TX_BYTES: sent, pynvml.NVML_PCIE_UTIL_RX_BYTES: received}[counter]

    def nvmlDeviceGetViolationStatus(self, device: FakeGpu, perfPolicyType: int) -> SimpleNamespace:
        self._enter("nvmlDeviceGetViolationStatus")
        power, thermal = device.violations_ns
        violations = {pynvml.NVML_PERF_POLICY_POWER: power, pynvml.NVML_PERF_POLICY_THERMAL: thermal}
        return SimpleNamespace(violationTime=violations[perfPolicyType])

    def nvmlDeviceGetTotalEccErrors(self, handle: FakeGpu, errorType: int, counterType: int) -> int:
        self._enter("nvmlDeviceGetTotalEccErrors")
        assert counterType == pynvml.NVML_VOLATILE_ECC
        return handle.ecc[errorType]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> list[SimpleNamespace]:
        self._enter("nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.compute]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: FakeGpu) -> list[SimpleNamespace]:
        self._enter("nvmlDeviceGetGraphicsRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in handle.graphics]

    def nvmlGpmQueryDeviceSupport(self, device: FakeGpu) -> SimpleNamespace:
        self._enter("nvmlGpmQueryDeviceSupport")
        return SimpleNamespace(isSupportedDevice=int(device.has_gpm))

    def nvmlGpmSampleAlloc(self) -> Any:
        self._enter("nvmlGpmSampleAlloc")
        self.gpm_samples += 1
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleFree(self, gpmSample: Any) -> None:
        self._enter("nvmlGpmSampleFree")
        self.gpm_samples -= 1

    def nvmlGpmSampleGet(self, device: FakeGpu, gpmSample: Any) -> Any:
        self._enter("nvmlGpmSampleGet")
        self._gpm = device.gpm
        return gpmSample

    def nvmlGpmMetricsGet(self, metricsGet: Any) -> Any:
        self._enter("nvmlGpmMetricsGet")
        for at in range(metricsGet.numMetrics):
            metric = metricsGet.metrics[at]
            if metric.metricId in self._gpm:
                metric.value = self._gpm[metric.metricId]
            else:
                metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED
        return metricsGet

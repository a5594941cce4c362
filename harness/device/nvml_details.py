"""NVML's further questions: energy, PCIe traffic, time with held clocks, ECC, processes, and GPM's metrics.

Counters are read as they are, cumulative since the driver was loaded. Field numbers, their units and those of
GPM are those of nvml.h.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from harness.device.nvml_queries import TOO_OLD, UNSUPPORTED, Missing, Query
from harness.device.protocol import DeviceProcess
from harness.telemetry_records import PcieMethod

# The fields asked for by number, since an older pynvml lacks the newer names; a test compares them.
FIELDS = {
    "NVML_FI_DEV_PERF_POLICY_POWER": 74,
    "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST": 76,
    "NVML_FI_DEV_PCIE_COUNT_TX_BYTES": 197,
    "NVML_FI_DEV_PCIE_COUNT_RX_BYTES": 198,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": 269,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": 270,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": 271,
}
_POWER, _SYNC_BOOST, _SENT, _RECEIVED, _THERMAL, _HW_THERMAL, _POWER_BRAKE = FIELDS.values()
_GPM = {
    "sm_active_pct": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy_pct": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_active_pct": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active_pct": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
_NO_GPM = "needs a Hopper GPU or a newer one"
_NOT_YET = "two samples are needed; this was the first"


def read_fields(lib: Any, handle: Any, fields: Sequence[int]) -> list[int | Missing]:
    """Several field values in one call, each with its own outcome."""
    found: list[int | Missing] = []
    for field in lib.nvmlDeviceGetFieldValues(handle, list(fields)):
        if field.nvmlReturn == lib.NVML_SUCCESS:
            found.append(_whole(lib, field))
        elif field.nvmlReturn == lib.NVML_ERROR_INVALID_ARGUMENT:
            found.append(Missing(TOO_OLD))
        else:
            found.append(Missing(UNSUPPORTED))
    return found


def _whole(lib: Any, field: Any) -> int:
    names = {
        lib.NVML_VALUE_TYPE_DOUBLE: "dVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        lib.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        lib.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    }
    return int(getattr(field.value, names.get(field.valueType, "ullVal")))


class PcieMeter:
    """PCIe traffic: the device's byte counters and their rate; where it has none, the driver's own rate.

    A counter that stands lower than before has wrapped: the rate is missing once.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._has_counters = True
        self._last: tuple[int, int, int] | None = None

    def ask(self, lib: Any, handle: Any) -> tuple[Any, ...]:
        """Bytes sent and received, their rates, and the method."""
        if self._has_counters:
            try:
                sent, received = read_fields(lib, handle, (_SENT, _RECEIVED))
            except (lib.NVMLError_NotSupported, lib.NVMLError_FunctionNotFound):
                sent = received = Missing(UNSUPPORTED)
            if isinstance(sent, int) and isinstance(received, int):
                return sent, received, *self._rates(sent, received), PcieMethod.COUNTERS
            self._has_counters = False
        missing = Missing("this device has no counters of PCIe bytes")
        window = (
            # KB/s as nvml.h says it, by which the driver means 1,024 bytes.
            float(lib.nvmlDeviceGetPcieThroughput(handle, lib.NVML_PCIE_UTIL_TX_BYTES)) * 1024,
            float(lib.nvmlDeviceGetPcieThroughput(handle, lib.NVML_PCIE_UTIL_RX_BYTES)) * 1024,
        )
        return missing, missing, *window, PcieMethod.WINDOW

    def _rates(self, sent: int, received: int) -> tuple[float | Missing, float | Missing]:
        now_ns = self._clock_ns()
        before, self._last = self._last, (now_ns, sent, received)
        if before is None or now_ns <= before[0]:
            return Missing(_NOT_YET), Missing(_NOT_YET)
        elapsed_s = (now_ns - before[0]) / 1e9
        wrapped = Missing("its counter has just wrapped")
        out, came = sent - before[1], received - before[2]
        return (wrapped if out < 0 else out / elapsed_s), (wrapped if came < 0 else came / elapsed_s)


def _held(lib: Any, handle: Any) -> tuple[int | Missing, ...]:
    """Nanoseconds with clocks held back, by reason; for older drivers from the two counters they have."""
    wanted = (_POWER, _THERMAL, _HW_THERMAL, _POWER_BRAKE, _SYNC_BOOST)
    try:
        found = read_fields(lib, handle, wanted)
    except (lib.NVMLError_NotSupported, lib.NVMLError_FunctionNotFound):
        found = [Missing(UNSUPPORTED)] * len(wanted)
    for at, policy in ((0, lib.NVML_PERF_POLICY_POWER), (1, lib.NVML_PERF_POLICY_THERMAL)):
        if isinstance(found[at], Missing):
            try:
                found[at] = int(lib.nvmlDeviceGetViolationStatus(handle, policy).violationTime)
            except (lib.NVMLError_NotSupported, lib.NVMLError_NoPermission, lib.NVMLError_FunctionNotFound):
                continue
    return tuple(found)


def _ecc(lib: Any, handle: Any) -> tuple[int, int]:
    kinds = (lib.NVML_MEMORY_ERROR_TYPE_CORRECTED, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    corrected, uncorrected = (
        int(lib.nvmlDeviceGetTotalEccErrors(handle, kind, lib.NVML_VOLATILE_ECC)) for kind in kinds
    )
    return corrected, uncorrected


def _processes(lib: Any, handle: Any) -> tuple[tuple[DeviceProcess, ...]]:
    """Who computes or draws on it; one that does both is one process."""
    found = list(lib.nvmlDeviceGetComputeRunningProcesses(handle))
    # Compute processes are what matters here.
    with suppress(lib.NVMLError_NotSupported, lib.NVMLError_NoPermission, lib.NVMLError_FunctionNotFound):
        found += lib.nvmlDeviceGetGraphicsRunningProcesses(handle)
    held: dict[int, int | None] = {}
    for process in found:
        pid, used = int(process.pid), process.usedGpuMemory
        held[pid] = held.get(pid) if used is None else max(int(used), held.get(pid) or 0)
    return (tuple(DeviceProcess(pid, used) for pid, used in sorted(held.items())),)


class GpmMeter:
    """GPM: what the hardware counted between two samples, of which the older is kept. Owns their memory."""

    def __init__(self) -> None:
        self._lib: Any = None
        self._older: Any = None
        self._newer: Any = None

    def ask(self, lib: Any, handle: Any) -> tuple[float | Missing, ...]:
        """The metrics since the call before, in the order of the fields."""
        if self._lib is None:
            if not lib.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise lib.NVMLError_NotSupported()
            self._older, self._newer = lib.nvmlGpmSampleAlloc(), lib.nvmlGpmSampleAlloc()
            self._lib = lib
            lib.nvmlGpmSampleGet(handle, self._newer)
            return (Missing(_NOT_YET),) * len(_GPM)
        lib.nvmlGpmSampleGet(handle, self._older)
        self._older, self._newer = self._newer, self._older
        wanted = lib.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = lib.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
        wanted.sample1, wanted.sample2 = self._older, self._newer
        for at, name in enumerate(_GPM.values()):
            wanted.metrics[at].metricId = getattr(lib, name)
        lib.nvmlGpmMetricsGet(wanted)
        metrics = (wanted.metrics[at] for at in range(len(_GPM)))
        return tuple(
            float(metric.value) if metric.nvmlReturn == lib.NVML_SUCCESS else Missing(UNSUPPORTED)
            for metric in metrics
        )

    def close(self) -> None:
        """Free both samples. Idempotent; harmless when NVML is shut down already."""
        lib, self._lib = self._lib, None
        if lib is None:
            return
        for sample in (self._older, self._newer):
            try:
                lib.nvmlGpmSampleFree(sample)
            except lib.NVMLError:
                return


def detail_queries(clock_ns: Callable[[], int], gpm: GpmMeter) -> list[Query]:
    """The questions whose answers fill a `DeviceDetails`."""
    return [
        Query(("energy_j",), lambda lib, handle: (lib.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,)),
        Query(
            (
                "pcie_sent_bytes",
                "pcie_received_bytes",
                "pcie_sent_bytes_per_s",
                "pcie_received_bytes_per_s",
                "pcie_method",
            ),
            PcieMeter(clock_ns).ask,
        ),
        Query(
            (
                "held_power_ns",
                "held_thermal_ns",
                "held_hw_thermal_ns",
                "held_power_brake_ns",
                "held_sync_boost_ns",
            ),
            _held,
        ),
        Query(("ecc_corrected", "ecc_uncorrected"), _ecc, "this device's memory has no error correction"),
        Query(("processes",), _processes),
        Query(tuple(_GPM), gpm.ask, _NO_GPM),
    ]

"""NVML queries for details: energy, PCIe traffic, throttled time, ECC, processes, and GPM metrics.

Counters are cumulative since the driver was loaded. Field numbers and units are those of nvml.h.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from harness.device.nvml.queries import TOO_OLD, UNSUPPORTED, Missing, Query
from harness.device.protocol import DeviceProcess
from harness.records.telemetry import PcieMethod

# Field numbers, since an older pynvml lacks the newer names; a test compares them.
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
_NO_GPM = "it needs a Hopper GPU or newer"
_NOT_YET = "it needs two samples, and this was the first"


def read_fields(lib: Any, handle: Any, fields: Sequence[int]) -> list[int | Missing]:
    """Read several field values in one call, each of which may be missing."""
    values: list[int | Missing] = []
    for field in lib.nvmlDeviceGetFieldValues(handle, list(fields)):
        if field.nvmlReturn == lib.NVML_SUCCESS:
            values.append(_whole(lib, field))
        elif field.nvmlReturn == lib.NVML_ERROR_INVALID_ARGUMENT:
            values.append(Missing(TOO_OLD))
        else:
            values.append(Missing(UNSUPPORTED))
    return values


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
    """PCIe traffic: the device's byte counters and their rate; without counters, the driver's rate.

    A counter that is lower than before has wrapped: the rate is missing once.
    """

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._has_counters = True
        self._last: tuple[int, int, int] | None = None

    def read(self, lib: Any, handle: Any) -> tuple[Any, ...]:
        """Return bytes sent and received, their rates, and the method."""
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
            # KB/s in nvml.h; the driver's KB are 1,024 bytes.
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
        sent_bytes, received_bytes = sent - before[1], received - before[2]
        return (wrapped if sent_bytes < 0 else sent_bytes / elapsed_s), (
            wrapped if received_bytes < 0 else received_bytes / elapsed_s
        )


def _throttled(lib: Any, handle: Any) -> tuple[int | Missing, ...]:
    """Return the throttled nanoseconds by reason; older drivers have two of the counters."""
    fields = (_POWER, _THERMAL, _HW_THERMAL, _POWER_BRAKE, _SYNC_BOOST)
    try:
        values = read_fields(lib, handle, fields)
    except (lib.NVMLError_NotSupported, lib.NVMLError_FunctionNotFound):
        values = [Missing(UNSUPPORTED)] * len(fields)
    for at, policy in ((0, lib.NVML_PERF_POLICY_POWER), (1, lib.NVML_PERF_POLICY_THERMAL)):
        if isinstance(values[at], Missing):
            try:
                values[at] = int(lib.nvmlDeviceGetViolationStatus(handle, policy).violationTime)
            except (lib.NVMLError_NotSupported, lib.NVMLError_NoPermission, lib.NVMLError_FunctionNotFound):
                continue
    return tuple(values)


def _ecc(lib: Any, handle: Any) -> tuple[int, int]:
    kinds = (lib.NVML_MEMORY_ERROR_TYPE_CORRECTED, lib.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    corrected, uncorrected = (
        int(lib.nvmlDeviceGetTotalEccErrors(handle, kind, lib.NVML_VOLATILE_ECC)) for kind in kinds
    )
    return corrected, uncorrected


def _processes(lib: Any, handle: Any) -> tuple[tuple[DeviceProcess, ...]]:
    """Return the compute and graphics processes; one that is both is listed once."""
    processes = list(lib.nvmlDeviceGetComputeRunningProcesses(handle))
    # Without graphics processes the list is still useful.
    with suppress(lib.NVMLError_NotSupported, lib.NVMLError_NoPermission, lib.NVMLError_FunctionNotFound):
        processes += lib.nvmlDeviceGetGraphicsRunningProcesses(handle)
    used_bytes: dict[int, int | None] = {}
    for process in processes:
        pid, used = int(process.pid), process.usedGpuMemory
        used_bytes[pid] = used_bytes.get(pid) if used is None else max(int(used), used_bytes.get(pid) or 0)
    return (tuple(DeviceProcess(pid, used) for pid, used in sorted(used_bytes.items())),)


class GpmMeter:
    """GPM metrics between two samples, whose memory it owns."""

    def __init__(self) -> None:
        self._lib: Any = None
        self._older: Any = None
        self._newer: Any = None

    def read(self, lib: Any, handle: Any) -> tuple[float | Missing, ...]:
        """Return the metrics since the previous call, in the order of the fields."""
        if self._lib is None:
            if not lib.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise lib.NVMLError_NotSupported()
            self._older, self._newer = lib.nvmlGpmSampleAlloc(), lib.nvmlGpmSampleAlloc()
            self._lib = lib
            lib.nvmlGpmSampleGet(handle, self._newer)
            return (Missing(_NOT_YET),) * len(_GPM)
        lib.nvmlGpmSampleGet(handle, self._older)
        self._older, self._newer = self._newer, self._older
        request = lib.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = lib.NVML_GPM_METRICS_GET_VERSION, len(_GPM)
        request.sample1, request.sample2 = self._older, self._newer
        for at, name in enumerate(_GPM.values()):
            request.metrics[at].metricId = getattr(lib, name)
        lib.nvmlGpmMetricsGet(request)
        metrics = (request.metrics[at] for at in range(len(_GPM)))
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
    """Return the queries for the fields of `DeviceDetails`."""
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
            PcieMeter(clock_ns).read,
        ),
        Query(
            (
                "held_power_ns",
                "held_thermal_ns",
                "held_hw_thermal_ns",
                "held_power_brake_ns",
                "held_sync_boost_ns",
            ),
            _throttled,
        ),
        Query(("ecc_corrected", "ecc_uncorrected"), _ecc, "this device's memory has no error correction"),
        Query(("processes",), _processes),
        Query(tuple(_GPM), gpm.read, _NO_GPM),
    ]

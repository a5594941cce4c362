"""NVML queries for details: energy, PCIe traffic, throttled time, ECC, processes, and GPM metrics.

Counters are cumulative since the driver was loaded. Field numbers and units are those of nvml.h.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from harness.device.nvml.queries import TOO_OLD, UNSUPPORTED, Missing, Query
from harness.device.protocol import DeviceProcess
from harness.records.telemetry import PcieMethod

# Field numbers, since an older pynvml lacks the newer names; a test compares them.
FIELDS = {
    "NVML_FI_DEV_PERF_POLICY_POWER": 74,
    "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST": 76,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN": 269,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN": 270,
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN": 271,
}
_POWER, _SYNC_BOOST, _THERMAL, _HW_THERMAL, _POWER_BRAKE = FIELDS.values()
_GPM = {
    "sm_active_pct": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy_pct": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_active_pct": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active_pct": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
# From the device and to it, in MiB per second.
_GPM_PCIE = ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", "NVML_GPM_METRIC_PCIE_RX_PER_SEC")
_MIB = 1 << 20
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
    """Rates of PCIe traffic: GPM's, of all traffic between two samples; without GPM, the driver's.

    The byte counters among the field values are not read: they have 32 bits, and wrap several times during a
    second of copying.
    """

    def __init__(self, gpm: "GpmMeter") -> None:
        """`gpm` is read before."""
        self._gpm = gpm

    def read(self, lib: Any, handle: Any) -> tuple[Any, ...]:
        """Return the bytes sent and received per second, and the method."""
        if self._gpm.pcie is not None:
            return *self._gpm.pcie, PcieMethod.GPM
        # KB/s in nvml.h; the driver's KB are 1,024 bytes.
        return (
            float(lib.nvmlDeviceGetPcieThroughput(handle, lib.NVML_PCIE_UTIL_TX_BYTES)) * 1024,
            float(lib.nvmlDeviceGetPcieThroughput(handle, lib.NVML_PCIE_UTIL_RX_BYTES)) * 1024,
            PcieMethod.WINDOW,
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
    """GPM metrics between two samples, whose memory it owns.

    Attributes:
        pcie: the bytes per second that the device sent and received; None where GPM does not measure them.
    """

    def __init__(self) -> None:
        self.pcie: tuple[float | Missing, float | Missing] | None = None
        self._lib: Any = None
        self._older: Any = None
        self._newer: Any = None
        self._request: Any = None

    def read(self, lib: Any, handle: Any) -> tuple[float | Missing, ...]:
        """Return the metrics since the previous call, in the order of the fields."""
        self.pcie = None
        if self._lib is None:
            if not lib.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise lib.NVMLError_NotSupported()
            self._older, self._newer = lib.nvmlGpmSampleAlloc(), lib.nvmlGpmSampleAlloc()
            self._lib = lib
            self._request = _gpm_request(lib)
            lib.nvmlGpmSampleGet(handle, self._newer)
            self.pcie = Missing(_NOT_YET), Missing(_NOT_YET)
            return (Missing(_NOT_YET),) * len(_GPM)
        lib.nvmlGpmSampleGet(handle, self._older)
        self._older, self._newer = self._newer, self._older
        request = self._request
        request.sample1, request.sample2 = self._older, self._newer
        lib.nvmlGpmMetricsGet(request)
        *values, sent, received = (
            float(metric.value) if metric.nvmlReturn == lib.NVML_SUCCESS else Missing(UNSUPPORTED)
            for metric in (request.metrics[at] for at in range(request.numMetrics))
        )
        if not isinstance(sent, Missing) and not isinstance(received, Missing):
            self.pcie = sent * _MIB, received * _MIB
        return tuple(values)

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


def _gpm_request(lib: Any) -> Any:
    request = lib.c_nvmlGpmMetricsGet_t()
    names = (*_GPM.values(), *_GPM_PCIE)
    request.version, request.numMetrics = lib.NVML_GPM_METRICS_GET_VERSION, len(names)
    for at, name in enumerate(names):
        request.metrics[at].metricId = getattr(lib, name)
    return request


def detail_queries(gpm: GpmMeter) -> list[Query]:
    """Return the queries for the fields of `DeviceDetails`."""
    return [
        Query(("energy_j",), lambda lib, handle: (lib.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,)),
        Query(tuple(_GPM), gpm.read, _NO_GPM),
        Query(
            ("pcie_sent_bytes_per_s", "pcie_received_bytes_per_s", "pcie_method"),
            PcieMeter(gpm).read,
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
    ]

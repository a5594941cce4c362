"""Telemetry of NVIDIA devices from NVML, once per second; a failing metric does not affect the others.

`harness.device.nvml.queries` handles failing and slow metrics. A lost device ends its samples with one
warning.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.device.nvml.details import GpmMeter, detail_queries
from harness.device.nvml.driver import Nvml
from harness.device.nvml.queries import LostDeviceError, NvmlQueries, Query
from harness.device.protocol import DeviceDetails, DeviceSample


def _utilization(lib: Any, handle: Any) -> tuple[float, float]:
    rates = lib.nvmlDeviceGetUtilizationRates(handle)
    return float(rates.gpu), float(rates.memory)


def memory_bytes(lib: Any, handle: Any) -> tuple[int, int]:
    """Return used and total. In version 2 `used` excludes the driver's own memory; old drivers have only
    version 1."""
    try:
        info = lib.nvmlDeviceGetMemoryInfo(handle, lib.nvmlMemory_v2)
    except (
        lib.NVMLError_FunctionNotFound,
        lib.NVMLError_ArgumentVersionMismatch,
        lib.NVMLError_NotSupported,
    ):
        info = lib.nvmlDeviceGetMemoryInfo(handle)
    return int(info.used), int(info.total)


def _throttle_reasons(lib: Any, handle: Any) -> tuple[int]:
    """Return a bit mask, `nvmlClocksEventReason*`; the older function is for drivers before 535."""
    try:
        return (int(lib.nvmlDeviceGetCurrentClocksEventReasons(handle)),)
    except lib.NVMLError_FunctionNotFound:
        return (int(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),)


SAMPLE_QUERIES = (
    Query(("util_pct", "memory_util_pct"), _utilization),
    Query(("memory_used_bytes", "memory_total_bytes"), memory_bytes),
    Query(("power_w",), lambda lib, handle: (lib.nvmlDeviceGetPowerUsage(handle) / 1000,)),
    Query(("power_limit_w",), lambda lib, handle: (lib.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,)),
    Query(
        ("temperature_c",),
        lambda lib, handle: (float(lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU)),),
    ),
    Query(
        ("sm_clock_mhz",), lambda lib, handle: (float(lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),)
    ),
    Query(
        ("memory_clock_mhz",),
        lambda lib, handle: (float(lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_MEM)),),
    ),
    Query(("throttle_reasons",), _throttle_reasons),
)


class NvmlTelemetry:
    """Implements `harness.device.protocol.Telemetry` for the devices with these UUIDs. Owns `nvml`."""

    def __init__(
        self,
        nvml: Nvml,
        uuids: Sequence[str],
        warn: Callable[[str], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`warn` takes one sentence; it is called for each device that NVML does not list."""
        self._nvml = nvml
        self._probes = []
        for uuid in uuids:
            handle = nvml.handle(uuid)
            if handle is None:
                warn(f"NVML lists no device {uuid}: its utilization, power and temperature are not recorded.")
            else:
                self._probes.append(_Probe(nvml.library, handle, uuid, warn, clock_ns))

    def sample(self) -> Sequence[DeviceSample]:
        """Return one sample per device that is not lost."""
        samples = (probe.sample() for probe in self._probes)
        return [sample for sample in samples if sample is not None]

    def details(self) -> Sequence[DeviceDetails]:
        """Return the details of each device that is not lost."""
        details = (probe.details() for probe in self._probes)
        return [detail for detail in details if detail is not None]

    def missing(self) -> Mapping[str, Mapping[str, str]]:
        """Return the reasons of missing fields, as clauses: device → field → reason."""
        return {probe.uuid: probe.missing() for probe in self._probes}

    def close(self) -> None:
        """Release NVML. Idempotent."""
        for probe in self._probes:
            probe.close()
        self._probes.clear()
        self._nvml.close()


class _Probe:
    """The queries of one device."""

    def __init__(
        self,
        library: Any,
        handle: Any,
        uuid: str,
        warn: Callable[[str], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self.uuid = uuid
        self._warn = warn
        self._gpm = GpmMeter()
        self._sample = NvmlQueries(library, handle, SAMPLE_QUERIES, clock_ns)
        self._details = NvmlQueries(library, handle, detail_queries(self._gpm), clock_ns)
        self._lost = False
        self._empty_sample = DeviceSample(uuid, *(None,) * (len(DeviceSample._fields) - 1))
        self._empty_details = DeviceDetails(uuid, *(None,) * (len(DeviceDetails._fields) - 1))

    def sample(self) -> DeviceSample | None:
        """Return a sample; None once the device is lost."""
        values = self._run(self._sample)
        return None if values is None else self._empty_sample._replace(**values)

    def details(self) -> DeviceDetails | None:
        """Return the details; None once the device is lost."""
        values = self._run(self._details)
        return None if values is None else self._empty_details._replace(**values)

    def missing(self) -> Mapping[str, str]:
        """Return the reasons of missing fields."""
        return self._sample.missing | self._details.missing

    def close(self) -> None:
        """Release the GPM samples."""
        self._gpm.close()

    def _run(self, queries: NvmlQueries) -> Mapping[str, Any] | None:
        if self._lost:
            return None
        try:
            return queries.run()
        except LostDeviceError as error:
            self._lost = True
            self._warn(f"{self.uuid} stopped responding (NVML: {error}); its telemetry ends here.")
            return None

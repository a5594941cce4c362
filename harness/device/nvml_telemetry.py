"""What NVIDIA devices say about themselves once a second, each metric failing by itself.

How a failing or slow metric is dealt with is told in `nvml_queries`. A lost device ends its samples with one
warning.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.device.nvml import Nvml
from harness.device.nvml_details import GpmMeter, detail_queries
from harness.device.nvml_queries import LostDeviceError, Query, Questions
from harness.device.protocol import DeviceDetails, DeviceSample


def _utilization(lib: Any, handle: Any) -> tuple[float, float]:
    rates = lib.nvmlDeviceGetUtilizationRates(handle)
    return float(rates.gpu), float(rates.memory)


def memory_bytes(lib: Any, handle: Any) -> tuple[int, int]:
    """Used and total. Version 2 keeps what the driver reserves for itself out of `used`; old drivers only
    know version 1."""
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
    """A bit mask, `nvmlClocksEventReason*`; the older name is for drivers before 535."""
    try:
        return (int(lib.nvmlDeviceGetCurrentClocksEventReasons(handle)),)
    except lib.NVMLError_FunctionNotFound:
        return (int(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),)


_SAMPLE = (
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
        """`warn` takes one sentence for a person; it is called for each device that NVML does not show."""
        self._nvml = nvml
        self._probes = []
        for uuid in uuids:
            handle = nvml.handle(uuid)
            if handle is None:
                warn(f"NVML shows no device {uuid}: its utilisation, power and temperature are not recorded.")
            else:
                self._probes.append(_Probe(nvml.library, handle, uuid, warn, clock_ns))

    def sample(self) -> Sequence[DeviceSample]:
        """One sample per device that is still there."""
        samples = (probe.sample() for probe in self._probes)
        return [sample for sample in samples if sample is not None]

    def details(self) -> Sequence[DeviceDetails]:
        """The details of each device that is still there."""
        details = (probe.details() for probe in self._probes)
        return [detail for detail in details if detail is not None]

    def missing(self) -> Mapping[str, Mapping[str, str]]:
        """Why fields were not told the last time: device → field → reason, in a clause."""
        return {probe.uuid: probe.missing() for probe in self._probes}

    def close(self) -> None:
        """Let go of NVML. Idempotent."""
        for probe in self._probes:
            probe.close()
        self._probes.clear()
        self._nvml.close()


class _Probe:
    """One device and what has been learnt about how it answers."""

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
        self._basic = Questions(library, handle, _SAMPLE, clock_ns)
        self._further = Questions(library, handle, detail_queries(clock_ns, self._gpm), clock_ns)
        self._lost = False
        self._silent_sample = DeviceSample(uuid, *(None,) * (len(DeviceSample._fields) - 1))
        self._silent_details = DeviceDetails(uuid, *(None,) * (len(DeviceDetails._fields) - 1))

    def sample(self) -> DeviceSample | None:
        """What the device tells now; None once it is lost."""
        told = self._ask(self._basic)
        return None if told is None else self._silent_sample._replace(**told)

    def details(self) -> DeviceDetails | None:
        """What else it tells; None once it is lost."""
        told = self._ask(self._further)
        return None if told is None else self._silent_details._replace(**told)

    def missing(self) -> Mapping[str, str]:
        """Why fields were not told the last time."""
        return self._basic.missing | self._further.missing

    def close(self) -> None:
        """Give back what is held beside NVML itself."""
        self._gpm.close()

    def _ask(self, questions: Questions) -> Mapping[str, Any] | None:
        if self._lost:
            return None
        try:
            return questions.ask()
        except LostDeviceError as error:
            self._lost = True
            self._warn(f"{self.uuid} stopped answering (NVML: {error}); its telemetry ends here.")
            return None

"""What NVIDIA devices say about themselves once a second, each metric failing by itself.

A metric that a device does not support, or may not tell, is not asked for again; one that takes longer than
100 ms is asked for every 30 s, so that a struggling driver is not made worse; a lost device ends its samples
with one warning.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from harness.device.nvml import Nvml
from harness.device.protocol import DeviceSample

SLOW_NS = 100_000_000
SLOW_EVERY_NS = 30_000_000_000


class _Query(NamedTuple):
    """One question to NVML and the fields of `DeviceSample` that its answer fills, in order."""

    fields: tuple[str, ...]
    ask: Callable[[Any, Any], tuple[float | int, ...]]


def _utilization(lib: Any, handle: Any) -> tuple[float, float]:
    rates = lib.nvmlDeviceGetUtilizationRates(handle)
    return float(rates.gpu), float(rates.memory)


def _memory(lib: Any, handle: Any) -> tuple[int, int]:
    """Version 2 keeps what the driver reserves for itself out of `used`; old drivers only know version 1."""
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


_QUERIES = (
    _Query(("util_pct", "memory_util_pct"), _utilization),
    _Query(("memory_used_bytes", "memory_total_bytes"), _memory),
    _Query(("power_w",), lambda lib, handle: (lib.nvmlDeviceGetPowerUsage(handle) / 1000,)),
    _Query(("power_limit_w",), lambda lib, handle: (lib.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,)),
    _Query(
        ("temperature_c",),
        lambda lib, handle: (float(lib.nvmlDeviceGetTemperature(handle, lib.NVML_TEMPERATURE_GPU)),),
    ),
    _Query(
        ("sm_clock_mhz",), lambda lib, handle: (float(lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_SM)),)
    ),
    _Query(
        ("memory_clock_mhz",),
        lambda lib, handle: (float(lib.nvmlDeviceGetClockInfo(handle, lib.NVML_CLOCK_MEM)),),
    ),
    _Query(("throttle_reasons",), _throttle_reasons),
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

    def close(self) -> None:
        """Let go of NVML. Idempotent."""
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
        self._lib = library
        self._handle = handle
        self._uuid = uuid
        self._warn = warn
        self._clock_ns = clock_ns
        self._due_ns = dict.fromkeys(_QUERIES, 0)
        self._lost = False
        self._silent = DeviceSample(uuid, *(None,) * (len(DeviceSample._fields) - 1))

    def sample(self) -> DeviceSample | None:
        """What the device tells now; None once it is lost."""
        if self._lost:
            return None
        lib = self._lib
        told: dict[str, Any] = {}
        for query in tuple(self._due_ns):
            began_ns = self._clock_ns()
            if began_ns < self._due_ns[query]:
                continue
            try:
                told.update(zip(query.fields, query.ask(lib, self._handle), strict=True))
            except (lib.NVMLError_NotSupported, lib.NVMLError_NoPermission, lib.NVMLError_FunctionNotFound):
                del self._due_ns[query]
                continue
            except (
                lib.NVMLError_GpuIsLost,
                lib.NVMLError_Uninitialized,
                lib.NVMLError_ResetRequired,
            ) as error:
                self._lost = True
                self._warn(f"{self._uuid} stopped answering (NVML: {error}); its telemetry ends here.")
                return None
            except lib.NVMLError:
                pass  # a timeout, a busy driver: missing this time only
            self._postpone_if_slow(query, began_ns)
        return self._silent._replace(**told)

    def _postpone_if_slow(self, query: _Query, began_ns: int) -> None:
        now_ns = self._clock_ns()
        if now_ns - began_ns > SLOW_NS:
            self._due_ns[query] = now_ns + SLOW_EVERY_NS

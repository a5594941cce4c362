"""Telemetry of GPUs through torch: AMD through AMD SMI, Intel through Level Zero.

Unlike NVML they have no counters of throttling, energy or traffic. Torch's functions for the load and power
of Intel GPUs block for a tenth of a second per call, so those two are not used.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch

from harness.device.accelerator import is_rocm
from harness.device.protocol import Device, DeviceDetails, DeviceSample, MemoryInfo
from harness.records.run import DeviceKind

# Torch's errors for an unavailable metric: not supported, no permission, no such package.
_FAILURES = (RuntimeError, OSError, ValueError, AttributeError, ImportError)

Probe = Callable[[], float | None]
Probes = Mapping[str, Probe]


class TorchTelemetry:
    """Implements `harness.device.protocol.Telemetry`. A metric that fails once is not queried again."""

    def __init__(
        self,
        device: str,
        probes: Probes,
        read_memory_info: Callable[[], MemoryInfo],
        on_missing: Callable[[str], None],
    ) -> None:
        """`probes` return fields of `DeviceSample`; `on_missing` takes a sentence about one that fails."""
        self._device = device
        self._probes = dict(probes)
        self._read_memory_info = read_memory_info
        self._on_missing = on_missing

    def sample(self) -> Sequence[DeviceSample]:
        """Return one sample with the available metrics."""
        values = {field: self._read(field, probe) for field, probe in list(self._probes.items())}
        free, total = self._read_memory_info()
        used = None if free is None or total is None else total - free
        empty = DeviceSample(self._device, *(None,) * (len(DeviceSample._fields) - 1))
        return [empty._replace(memory_used_bytes=used, memory_total_bytes=total, **values)]  # type: ignore[arg-type]  # floats all

    def details(self) -> Sequence[DeviceDetails]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""

    def _read(self, field: str, probe: Probe) -> float | None:
        try:
            value = probe()
            return None if value is None else float(value)
        except (*_FAILURES, _amd_error()) as error:
            del self._probes[field]
            reason = " ".join(str(error).split()) or type(error).__name__
            self._on_missing(f"{field} is no longer available: {reason}")
            return None


def open_telemetry(
    device: Device, on_missing: Callable[[str], None], has: Callable[[str], Any] = find_spec
) -> TorchTelemetry | None:
    """Open the telemetry of an AMD or Intel GPU; None for every other device. `has` finds a package."""
    kind = device.facts.kind
    probes: Probes = {}
    if kind is DeviceKind.CUDA and is_rocm():
        if has("amdsmi") is None:
            on_missing("Load, power, temperature and clocks are n/a: the package amdsmi is not installed.")
        else:
            probes = _amd_probes(device.facts.ordinal or 0)
    elif kind is DeviceKind.XPU:
        if hasattr(torch.xpu, "temperature") and has("pyzes") is not None:
            probes = {"temperature_c": lambda: torch.xpu.temperature(device.facts.ordinal or 0)}
    else:
        return None
    return TorchTelemetry(kind.value, probes, device.read_memory_info, on_missing)


def _amd_error() -> type[Exception]:
    """The base of AMD SMI's own errors."""
    error: type[Exception] = getattr(getattr(torch.cuda, "amdsmi", None), "AmdSmiException", RuntimeError)
    return error


def _amd_probes(ordinal: int) -> Probes:
    """Return the probes of an AMD GPU. AMD SMI's power is in W, despite torch's documentation (mW in NVML);
    torch returns zero for unavailable power and clock."""
    return {
        "util_pct": lambda: torch.cuda.utilization(ordinal),
        "memory_util_pct": lambda: torch.cuda.memory_usage(ordinal),
        "temperature_c": lambda: torch.cuda.temperature(ordinal),
        "power_w": lambda: torch.cuda.power_draw(ordinal) or None,
        "sm_clock_mhz": lambda: torch.cuda.clock_rate(ordinal) or None,
    }

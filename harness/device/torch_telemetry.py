"""What torch itself can tell of how a GPU does: AMD's through AMD SMI, Intel's through Level Zero.

Neither is NVML: there are no counters of throttling, energy or traffic. Torch's own functions for Intel's
load and power wait for a tenth of a second at each call, so those two are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import torch

from harness.device.accelerator import is_rocm
from harness.device.protocol import Device, DeviceDetails, DeviceSample, RoomReading
from harness.records import DeviceKind

# What torch raises where a metric is not told: not supported, no permission, no such package.
_FAILURES = (RuntimeError, OSError, ValueError, AttributeError, ImportError)

Probe = Callable[[], float | None]
Probes = Mapping[str, Probe]


class TorchTelemetry:
    """Implements `harness.device.protocol.Telemetry`. A metric that fails once is not asked again."""

    def __init__(
        self,
        device: str,
        probes: Probes,
        read_room: Callable[[], RoomReading],
        on_missing: Callable[[str], None],
    ) -> None:
        """`probes` tell fields of `DeviceSample`; `on_missing` is told, in a sentence, of one that fails."""
        self._device = device
        self._probes = dict(probes)
        self._read_room = read_room
        self._on_missing = on_missing

    def sample(self) -> Sequence[DeviceSample]:
        """One sample, with what can be told."""
        told = {field: self._ask(field, probe) for field, probe in list(self._probes.items())}
        free, total = self._read_room()
        used = None if free is None or total is None else total - free
        silent = DeviceSample(self._device, *(None,) * (len(DeviceSample._fields) - 1))
        return [silent._replace(memory_used_bytes=used, memory_total_bytes=total, **told)]  # type: ignore[arg-type]  # floats all

    def details(self) -> Sequence[DeviceDetails]:
        """Nothing more."""
        return ()

    def close(self) -> None:
        """Nothing to release."""

    def _ask(self, field: str, probe: Probe) -> float | None:
        try:
            value = probe()
            return None if value is None else float(value)
        except (*_FAILURES, _amd_error()) as error:
            del self._probes[field]
            reason = " ".join(str(error).split()) or type(error).__name__
            self._on_missing(f"{field} is not told any more: {reason}")
            return None


def open_telemetry(
    device: Device, on_missing: Callable[[str], None], has: Callable[[str], Any] = find_spec
) -> TorchTelemetry | None:
    """The telemetry of a GPU that is not NVIDIA's; None for every other device. `has` finds a package."""
    kind = device.facts.kind
    probes: Probes = {}
    if kind is DeviceKind.CUDA and is_rocm():
        if has("amdsmi") is None:
            on_missing("Load, power, temperature and clocks are n/a: the package amdsmi is not there.")
        else:
            probes = _amd_probes(device.facts.ordinal or 0)
    elif kind is DeviceKind.XPU:
        if hasattr(torch.xpu, "temperature") and has("pyzes") is not None:
            probes = {"temperature_c": lambda: torch.xpu.temperature(device.facts.ordinal or 0)}
    else:
        return None
    return TorchTelemetry(kind.value, probes, device.read_room, on_missing)


def _amd_error() -> type[Exception]:
    """The base of AMD SMI's own errors."""
    found: type[Exception] = getattr(getattr(torch.cuda, "amdsmi", None), "AmdSmiException", RuntimeError)
    return found


def _amd_probes(ordinal: int) -> Probes:
    """AMD SMI tells power in W, whatever torch's documentation says of NVML's mW; torch makes a zero of what
    AMD SMI does not tell of power and clock."""
    return {
        "util_pct": lambda: torch.cuda.utilization(ordinal),
        "memory_util_pct": lambda: torch.cuda.memory_usage(ordinal),
        "temperature_c": lambda: torch.cuda.temperature(ordinal),
        "power_w": lambda: torch.cuda.power_draw(ordinal) or None,
        "sm_clock_mhz": lambda: torch.cuda.clock_rate(ordinal) or None,
    }

"""The energy counter of one NVIDIA device, read between two steps."""

from typing import Any

import pynvml

from harness.closing import Closing
from harness.device.nvml.driver import Nvml, NvmlUnavailableError


class EnergyMeter(Closing):
    """Opens NVML at the first reading. `close` releases it until the next one."""

    def __init__(self, uuid: str | None, library: Any = pynvml) -> None:
        """`uuid` is the device's; None: it has no meter."""
        self._uuid = uuid
        self._library = library
        self._nvml: Nvml | None = None
        self._is_missing = uuid is None

    def read_j(self) -> float | None:
        """Return the energy that the device has used since its driver was loaded; None if unavailable."""
        if self._is_missing or self._uuid is None:
            return None
        try:
            self._nvml = self._nvml or Nvml(self._library)
            handle = self._nvml.handle(self._uuid)
            if handle is None:
                return None
            return float(self._library.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000
        except (NvmlUnavailableError, self._library.NVMLError):
            self._is_missing = True
            return None

    def close(self) -> None:
        """Release NVML. Idempotent."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.close()

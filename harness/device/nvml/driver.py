"""NVML: versions, power limits and devices by UUID, from the NVIDIA driver.

NVML counts GPUs regardless of CUDA_VISIBLE_DEVICES, so its indices are not those of torch.
`library` is the module `pynvml`, or the fake in `harness.device.testing.nvml`.
"""

from collections.abc import Iterable
from typing import Any

import pynvml

from harness.closing import Closing
from harness.errors import DeviceError

_REASONS = {
    "LibraryNotFound": (
        "libnvidia-ml.so.1 is not installed",
        "Install the NVIDIA driver; in a container pass the GPU and its driver in (docker run --gpus all).",
    ),
    "DriverNotLoaded": ("the NVIDIA driver is not loaded", "Load the driver, or reboot."),
    "LibRmVersionMismatch": (
        "the loaded NVIDIA driver and its library differ in version",
        "Reboot: the driver was updated while it was loaded.",
    ),
    "NoPermission": ("this user has no access to the NVIDIA driver", "Get access to /dev/nvidia*."),
}


class NvmlUnavailableError(DeviceError):
    """NVML is unavailable.

    Attributes:
        reason: the reason, as a clause.
        advice: the remedy, in one sentence.
    """

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"NVML is not available: {reason}. {advice}")
        self.reason = reason
        self.advice = advice


class Nvml(Closing):
    """An initialized NVML. Close it when done; NVML counts its users, so several may be open."""

    def __init__(self, library: Any = pynvml) -> None:
        """Initialize NVML; raises NvmlUnavailableError."""
        self.library = library
        self._open = False
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            raise _unavailable(error) from error
        self._open = True

    def close(self) -> None:
        """Release NVML. Idempotent."""
        if not self._open:
            return
        self._open = False
        try:
            self.library.nvmlShutdown()
        except self.library.NVMLError_Uninitialized:
            return

    def handle(self, uuid: str) -> Any | None:
        """Return NVML's handle of the device with this UUID ("GPU-…" or "MIG-…"), None without such a device.

        CUDA's prefix is not always right, so the other prefix is tried as well.
        """
        lib = self.library
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        for candidate in dict.fromkeys((uuid, f"GPU-{bare}", f"MIG-{bare}")):
            try:
                return lib.nvmlDeviceGetHandleByUUID(candidate)
            except lib.NVMLError:
                continue
        return None

    def power_limit_w(self, uuid: str) -> float | None:
        """Return the enforced power limit, None if unavailable."""
        lib = self.library
        handle = self.handle(uuid)
        if handle is None:
            return None
        try:
            return float(lib.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000
        except lib.NVMLError:
            return None

    def device_count(self) -> int:
        """Return the number of GPUs, regardless of CUDA_VISIBLE_DEVICES; 0 if unavailable."""
        try:
            return int(self.library.nvmlDeviceGetCount())
        except self.library.NVMLError:
            return 0

    def devices(self) -> list[tuple[str, str]]:
        """Return UUID and name of every GPU that responds, regardless of CUDA_VISIBLE_DEVICES."""
        lib = self.library
        devices = []
        for index in range(self.device_count()):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(index)
                devices.append((str(lib.nvmlDeviceGetUUID(handle)), str(lib.nvmlDeviceGetName(handle))))
            except lib.NVMLError:
                continue
        return devices

    def sizes(self) -> list[tuple[str, int]]:
        """Return name and memory in bytes of every GPU that responds, regardless of CUDA_VISIBLE_DEVICES."""
        lib = self.library
        sizes = []
        for index in range(self.device_count()):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(index)
                memory_bytes = int(lib.nvmlDeviceGetMemoryInfo(handle).total)
                sizes.append((str(lib.nvmlDeviceGetName(handle)), memory_bytes))
            except lib.NVMLError:
                continue
        return sizes

    def free_bytes(self, others: Iterable[str] = ()) -> dict[str, int | None]:
        """Return the free memory by UUID: of every GPU that responds, and of those of `others` that are parts
        of one (MIG). None if unavailable."""
        lib = self.library
        listed = [uuid for uuid, _ in self.devices()]
        handles = {uuid: self.handle(uuid) for uuid in dict.fromkeys((*listed, *others))}
        free: dict[str, int | None] = {}
        for uuid, handle in handles.items():
            if handle is None:
                continue
            try:
                info = lib.nvmlDeviceGetMemoryInfo(handle)  # Its `used` includes what the driver reserves.
                free[uuid] = int(info.total - info.used)
            except lib.NVMLError:
                free[uuid] = None
        return free

    def driver_version(self) -> str | None:
        """Return the driver's version, as in "580.159.04"."""
        try:
            return str(self.library.nvmlSystemGetDriverVersion())
        except self.library.NVMLError:
            return None

    def cuda_version(self) -> tuple[int, int] | None:
        """Return the newest CUDA version that the driver supports, as (13, 0)."""
        try:
            number = int(self.library.nvmlSystemGetCudaDriverVersion_v2())
        except self.library.NVMLError:
            return None
        return number // 1000, number % 1000 // 10


def _unavailable(error: Exception) -> NvmlUnavailableError:
    kind = type(error).__name__.removeprefix("NVMLError_")
    reason, advice = _REASONS.get(kind, (f"it reports {str(error)!r}", "Check that nvidia-smi works."))
    return NvmlUnavailableError(reason, advice)

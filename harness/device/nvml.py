"""NVML: the NVIDIA driver's own word on versions, power limits and, by UUID, on single devices.

NVML counts GPUs regardless of CUDA_VISIBLE_DEVICES, so an index of its never says which device is meant.
`library` is the module `pynvml`, or the fake in `harness.device.fake_nvml`.
"""

from typing import Any

import pynvml

from harness.errors import DeviceError

_KNOWN = {
    "LibraryNotFound": (
        "libnvidia-ml.so.1 was not found",
        "Install the NVIDIA driver; in a container pass the GPU and its driver in (docker run --gpus all).",
    ),
    "DriverNotLoaded": ("the NVIDIA driver is not loaded", "Load the driver, or reboot."),
    "LibRmVersionMismatch": (
        "the loaded NVIDIA driver and its library differ in version",
        "Reboot: the driver was updated while it was loaded.",
    ),
    "NoPermission": ("this user may not talk to the NVIDIA driver", "Ask for access to /dev/nvidia*."),
}


class NvmlUnavailableError(DeviceError):
    """NVML cannot be used.

    Attributes:
        found: why, in one clause.
        advice: what to do, in one sentence.
    """

    def __init__(self, found: str, advice: str) -> None:
        super().__init__(f"NVML is not available: {found}. {advice}")
        self.found = found
        self.advice = advice


class Nvml:
    """A started NVML. Close it when done; NVML counts its users, so several may be open."""

    def __init__(self, library: Any = pynvml) -> None:
        """Start NVML; raises NvmlUnavailableError."""
        self.library = library
        self._open = False
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            raise _unavailable(error) from error
        self._open = True

    def __enter__(self) -> "Nvml":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of NVML. Idempotent."""
        if not self._open:
            return
        self._open = False
        try:
            self.library.nvmlShutdown()
        except self.library.NVMLError_Uninitialized:
            return

    def handle(self, uuid: str) -> Any | None:
        """NVML's handle of the device with this UUID ("GPU-…" or "MIG-…"), None when it shows no such device.

        CUDA does not always say which of the two it means, so the other prefix is tried as well.
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
        """The power limit in force, None where the device does not tell."""
        lib = self.library
        handle = self.handle(uuid)
        if handle is None:
            return None
        try:
            return float(lib.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000
        except lib.NVMLError:
            return None

    def device_count(self) -> int:
        """How many GPUs the driver shows, CUDA_VISIBLE_DEVICES or not; 0 when it does not tell."""
        try:
            return int(self.library.nvmlDeviceGetCount())
        except self.library.NVMLError:
            return 0

    def devices(self) -> list[tuple[str, str]]:
        """UUID and name of every GPU the driver shows, CUDA_VISIBLE_DEVICES or not; one that does not answer
        is left out. Indices serve this listing alone."""
        lib = self.library
        found = []
        for index in range(self.device_count()):
            try:
                handle = lib.nvmlDeviceGetHandleByIndex(index)
                found.append((str(lib.nvmlDeviceGetUUID(handle)), str(lib.nvmlDeviceGetName(handle))))
            except lib.NVMLError:
                continue
        return found

    def driver_version(self) -> str | None:
        """The driver's version, as in "580.159.04"."""
        try:
            return str(self.library.nvmlSystemGetDriverVersion())
        except self.library.NVMLError:
            return None

    def cuda_version(self) -> tuple[int, int] | None:
        """The newest CUDA the driver supports, as (13, 0)."""
        try:
            number = int(self.library.nvmlSystemGetCudaDriverVersion_v2())
        except self.library.NVMLError:
            return None
        return number // 1000, number % 1000 // 10


def _unavailable(error: Exception) -> NvmlUnavailableError:
    kind = type(error).__name__.removeprefix("NVMLError_")
    found, advice = _KNOWN.get(kind, (f"it answers {str(error)!r}", "See whether nvidia-smi works."))
    return NvmlUnavailableError(found, advice)

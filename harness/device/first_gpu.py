"""The memory of the GPU that a run would use, from the driver, without importing torch."""

from collections.abc import Mapping
from typing import Any

import pynvml

from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.selector import Platform, kind_of, may_exist
from harness.records.run import DeviceKind


def gpu_memory_bytes(
    selector: str,
    environ: Mapping[str, str],
    platform: Platform | None = None,
    library: Any = pynvml,
) -> int | None:
    """Return the memory of the smallest NVIDIA GPU, any of which `selector` may stand for; None if the run
    uses another kind of device, or no GPU responds. Raises SettingError for an invalid selector."""
    is_cpu = selector.strip().lower() == "cpu" or environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if is_cpu or kind_of(selector) not in (None, DeviceKind.CUDA):
        return None
    if not may_exist(DeviceKind.CUDA, platform):
        return None
    try:
        with Nvml(library) as nvml:
            return min((memory_bytes for _, memory_bytes in nvml.sizes()), default=None)
    except NvmlUnavailableError:
        return None

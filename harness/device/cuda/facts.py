"""The fixed properties of each CUDA device that torch can use, in torch's order, after CUDA_VISIBLE_DEVICES.

A ROCm build of torch lists AMD GPUs here, which have no compute capability, UUID or NVML.
"""

import platform
import sys
import warnings
from importlib.util import find_spec
from typing import NamedTuple

import torch

from harness.device.accelerator import is_rocm
from harness.records.run import AmpMode, DeviceFacts, DeviceKind


class CudaAvailability(NamedTuple):
    """The number of CUDA devices that torch can use and, if it is zero, the reason as a clause."""

    devices: int
    reason: str


def probe_cuda() -> CudaAvailability:
    """Count CUDA devices. Never raises and never prints: a warning of torch becomes the reason."""
    if torch.version.cuda is None and not is_rocm():
        return CudaAvailability(0, f"torch {torch.__version__} is built without CUDA")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count > 0:
        return CudaAvailability(count, "")
    warning = " ".join(str(caught[0].message).split()) if caught else "torch detects no CUDA device"
    return CudaAvailability(0, warning.split(" (Triggered internally")[0].rstrip("."))


def cuda_facts(ordinal: int) -> DeviceFacts:
    """Return the facts of torch's device `ordinal`, without the power limit, which comes from NVML.

    bfloat16 needs compute capability 8.0, or an AMD GPU, as in
    `torch.cuda.is_bf16_supported(including_emulation=False)`.
    """
    properties = torch.cuda.get_device_properties(ordinal)
    name, is_amd = str(properties.name), is_rocm()
    capability = None if is_amd else (int(properties.major), int(properties.minor))
    bf16 = (AmpMode.BF16,) if capability is None or capability >= (8, 0) else ()
    if is_amd and "AMD" not in name:
        name = f"AMD {name}"
    return DeviceFacts(
        kind=DeviceKind.CUDA,
        ordinal=ordinal,
        uuid=None if is_amd else device_uuid(str(getattr(properties, "uuid", "")), name),
        name=name,
        memory_bytes=int(properties.total_memory),
        capability=capability,
        multiprocessors=int(properties.multi_processor_count),
        power_limit_w=None,
        amp_modes=(AmpMode.OFF, *bf16, AmpMode.FP16),
        can_pin=True,
        can_trim=True,
        can_cap=True,
        can_compile=compile_obstacle(capability) is None,
    )


def device_uuid(text: str, name: str) -> str | None:
    """Format a UUID as NVML does: "GPU-…", or "MIG-…" for a MIG slice, which has " MIG " in its name."""
    if not text or text.startswith(("GPU-", "MIG-")):
        return text or None
    return ("MIG-" if " MIG " in name else "GPU-") + text


def compile_obstacle(capability: tuple[int, int] | None) -> str | None:
    """Return the reason that torch.compile is unavailable on such a GPU, with what to do, or None. An AMD GPU
    has no compute capability."""
    if sys.version_info >= (3, 15):
        return f"torch.compile does not support Python {platform.python_version()}; use Python 3.14 or older."
    if capability is not None and capability < (7, 0):
        return f"torch.compile needs compute capability 7.0, this GPU has {capability[0]}.{capability[1]}."
    if find_spec("triton") is None:
        return "torch.compile needs Triton and it is not installed; pip install triton."
    return None

"""The doctor's checks of AMD, Apple and Intel GPUs."""

from importlib.util import find_spec

import torch

from harness import words
from harness.device.accelerator import is_rocm
from harness.device.doctor.report import Check, Status


def check_others() -> list[Check]:
    """Return one check per available kind; usually none."""
    return [check for check in (_amd(), _apple(), _intel()) if check is not None]


def amd_limits() -> list[str]:
    """Return the limitations of an AMD GPU, each a sentence with its reason."""
    limits = [
        "Throttling, energy, PCIe traffic and the memory of other programs need NVML, an NVIDIA library.",
        "Tensor cores and dense peaks are unknown for AMD GPUs, so there is no MFU.",
    ]
    if find_spec("amdsmi") is None:
        limits.append("Load, power, temperature and clocks need AMD SMI's Python package (amdsmi, in ROCm).")
    return limits


def _amd() -> Check | None:
    """Check a ROCm build, which exposes AMD GPUs under the names of torch.cuda."""
    if not is_rocm():
        return None
    hip = torch.version.hip
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return Check("AMD GPU", Status.UNAVAILABLE, f"torch is built for ROCm {hip} and detects no GPU")
    return Check("AMD GPU", Status.OK, f"{torch.cuda.get_device_name(0)}, torch is built for ROCm {hip}")


def _apple() -> Check | None:
    if not torch.backends.mps.is_available():
        return None
    memory = words.size(torch.mps.recommended_max_memory())
    return Check("Apple GPU", Status.OK, f"available, recommended maximum {memory}")


def _intel() -> Check | None:
    if not torch.xpu.is_available():
        return None
    name = torch.xpu.get_device_name(0)
    memory = words.size(torch.xpu.get_device_properties(0).total_memory)
    return Check("Intel GPU", Status.OK, f"{name}, {memory}")

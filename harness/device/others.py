"""The doctor's word on accelerators that are not NVIDIA's: AMD, Apple and Intel GPUs."""

from importlib.util import find_spec

import torch

from harness import words
from harness.device.accelerator import is_rocm
from harness.device.report import Check, Status


def check_others() -> list[Check]:
    """One check for each kind that is found; usually none."""
    return [check for check in (_amd(), _apple(), _intel()) if check is not None]


def amd_limits() -> list[str]:
    """What cannot be measured on an AMD GPU, each with its reason, in a sentence."""
    limits = [
        "Throttling, energy, traffic and other programs' memory need NVML, which is NVIDIA's.",
        "Tensor cores and dense peaks are not known for AMD GPUs, so there is no MFU.",
    ]
    if find_spec("amdsmi") is None:
        limits.append("Load, power, temperature and clocks need AMD SMI's Python package (amdsmi, in ROCm).")
    return limits


def _amd() -> Check | None:
    """A build for ROCm reaches AMD GPUs under the names of torch.cuda."""
    if not is_rocm():
        return None
    hip = torch.version.hip
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not found:
        return Check("AMD GPU", Status.UNAVAILABLE, f"torch is built for ROCm {hip} and sees no GPU")
    return Check("AMD GPU", Status.OK, f"{torch.cuda.get_device_name(0)}, torch is built for ROCm {hip}")


def _apple() -> Check | None:
    if not torch.backends.mps.is_available():
        return None
    memory = words.size(torch.mps.recommended_max_memory())
    return Check("Apple GPU", Status.OK, f"found, {memory} recommended at most")


def _intel() -> Check | None:
    if not torch.xpu.is_available():
        return None
    name = torch.xpu.get_device_name(0)
    memory = words.size(torch.xpu.get_device_properties(0).total_memory)
    return Check("Intel GPU", Status.OK, f"{name}, {memory}")

"""Accelerators that torch knows and this Stepscope has not been tried on: AMD, Apple and Intel GPUs.

Runs do not use them. The doctor says so in one sentence each, with what torch could tell about them.
"""

import torch

from harness import words
from harness.device.report import Check, Status

_UNTRIED = "This Stepscope has not been tried on it and trains on the CPU; torch tells its"


def check_others() -> list[Check]:
    """One check for each kind that is found; usually none."""
    return [check for check in (_amd(), _apple(), _intel()) if check is not None]


def _amd() -> Check | None:
    """A build for ROCm reaches AMD GPUs under the names of torch.cuda."""
    hip = getattr(torch.version, "hip", None)
    if hip is None:
        return None
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not found:
        return Check("AMD GPU", Status.UNAVAILABLE, f"torch is built for ROCm {hip} and sees no GPU")
    name = torch.cuda.get_device_name(0)
    advice = (
        f"{_UNTRIED} memory and times through torch.cuda, and there is no NVML on it to tell power, "
        "temperature and traffic."
    )
    return Check("AMD GPU", Status.WARNING, f"{name}, torch is built for ROCm {hip}", advice)


def _apple() -> Check | None:
    if not torch.backends.mps.is_available():
        return None
    memory = words.size(torch.mps.recommended_max_memory())
    advice = f"{_UNTRIED} memory and times (torch.mps), not its load, power or temperature."
    return Check("Apple GPU", Status.WARNING, f"found, {memory} recommended at most", advice)


def _intel() -> Check | None:
    if not hasattr(torch, "xpu") or not torch.xpu.is_available():
        return None
    name = torch.xpu.get_device_name(0)
    memory = words.size(torch.xpu.get_device_properties(0).total_memory)
    advice = f"{_UNTRIED} memory and times (torch.xpu), not its load, power or temperature."
    return Check("Intel GPU", Status.WARNING, f"{name}, {memory}", advice)

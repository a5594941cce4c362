"""The fixed properties of Intel GPUs, from torch, and their limitations."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch

from harness.records.run import AmpMode, DeviceFacts, DeviceKind

# The first torch whose DataLoader pins memory for any accelerator, not only CUDA.
_PINNING_LOADER = (2, 7)


def list_xpu() -> list[DeviceFacts]:
    """Return every Intel GPU that torch can train on, in torch's order."""
    if not torch.xpu.is_available():
        return []
    return [xpu_facts(torch.xpu, ordinal) for ordinal in range(torch.xpu.device_count())]


def xpu_facts(library: Any, ordinal: int) -> DeviceFacts:
    """Return the facts of torch's device `ordinal` from `library`, the module torch.xpu.

    fp16 needs double precision, in which GradScaler computes its scale.
    """
    properties = library.get_device_properties(ordinal)
    bf16 = (AmpMode.BF16,) if getattr(properties, "has_bfloat16_conversions", True) else ()
    has_fp16 = getattr(properties, "has_fp16", True) and getattr(properties, "has_fp64", True)
    name = str(properties.name)
    return DeviceFacts(
        kind=DeviceKind.XPU,
        ordinal=ordinal,
        uuid=None,
        name=name if "Intel" in name else f"Intel {name}",
        memory_bytes=int(properties.total_memory),
        capability=None,
        multiprocessors=int(properties.max_compute_units),
        power_limit_w=None,
        amp_modes=(AmpMode.OFF, *bf16, *((AmpMode.FP16,) if has_fp16 else ())),
        can_pin=_version() >= _PINNING_LOADER,
        can_trim=True,
        can_cap=hasattr(library, "set_per_process_memory_fraction"),
        can_compile=find_spec("triton") is not None,
    )


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def xpu_limits(facts: DeviceFacts) -> Sequence[str]:
    """Return the limitations of an Intel GPU, each a sentence with its reason."""
    limits = [
        "A breakdown of reserved memory, retries of the allocator and the memory of other programs are "
        "unavailable for XPU.",
        "Throttling, energy and PCIe traffic need NVML, an NVIDIA library.",
        "Tensor cores and dense peaks are unknown for Intel GPUs, so there is no MFU.",
    ]
    if not hasattr(torch.xpu, "temperature"):
        limits.append("Load, power and temperature need a torch that has torch.xpu.temperature.")
    elif find_spec("pyzes") is None:
        limits.append("Temperature and power need Level Zero's Python package; pip install pyzes.")
    if not facts.can_cap:
        limits.append("The memory cap needs a torch with torch.xpu.set_per_process_memory_fraction.")
    if not facts.can_compile:
        limits.append("torch.compile needs Triton for XPU, and it is not installed.")
    if AmpMode.FP16 not in facts.amp_modes:
        limits.append("fp16 needs double precision for GradScaler, which this GPU lacks; use bf16.")
    return limits

"""What is fixed about an Apple GPU, as far as torch tells, and what cannot be measured or done on it."""

from collections.abc import Sequence
from types import ModuleType

import torch

from harness.device.accelerator import has_scaler
from harness.records import AmpMode, DeviceFacts, DeviceKind

# The first macOS whose Metal has bfloat16 (`torch.backends.mps.is_macos_or_newer`).
_BF16_MACOS = (14, 0)


def list_mps() -> list[DeviceFacts]:
    """The Apple GPU, where torch can train on it."""
    backend = torch.backends.mps
    return [mps_facts(backend)] if backend.is_available() else []


def mps_facts(backend: ModuleType) -> DeviceFacts:
    """The facts told by `backend`, the module torch.backends.mps; names and cores in newer versions alone.

    Memory is what Metal recommends as the most: the GPU shares the machine's. fp16 is offered where torch has
    GradScaler's kernel for MPS, bf16 from macOS 14 on.
    """
    name = backend.get_name() if hasattr(backend, "get_name") else "Apple GPU"
    cores = int(backend.get_core_count()) if hasattr(backend, "get_core_count") else None
    bf16 = (AmpMode.BF16,) if backend.is_macos_or_newer(*_BF16_MACOS) else ()
    fp16 = (AmpMode.FP16,) if has_scaler("MPS") else ()
    return DeviceFacts(
        kind=DeviceKind.MPS,
        ordinal=0,
        uuid=None,
        name=name,
        memory_bytes=int(torch.mps.recommended_max_memory()),
        capability=None,
        multiprocessors=cores,
        power_limit_w=None,
        amp_modes=(AmpMode.OFF, *bf16, *fp16),
        can_pin=False,
        can_trim=True,
        can_cap=True,
        can_compile=False,
    )


def mps_limits(facts: DeviceFacts) -> Sequence[str]:
    """What cannot be done or measured on an Apple GPU, each with its reason, in a sentence."""
    limits = [
        "The peak of a step is a lower bound: torch keeps none for MPS, so it is looked for at the ends of "
        "phases and, in long steps, 50 times a second.",
        "Device times come from two steps a second: reading an MPS event waits for the device.",
        "Allocated and held memory are told, but not how it is cut up, nor what other programs hold.",
        "Load, power, temperature and clocks are not told by torch; macOS tells them to `powermetrics`.",
        "Pinned memory has no place where GPU and CPU share theirs, and copies that do not block corrupt "
        "data on MPS (pytorch/pytorch issues 139550 and 189690).",
        "torch.compile for MPS is a prototype and not offered.",
    ]
    if AmpMode.BF16 not in facts.amp_modes:
        limits.append("bf16 needs macOS 14 or newer.")
    if AmpMode.FP16 not in facts.amp_modes:
        limits.append("fp16 needs a torch whose GradScaler has kernels for MPS; use bf16.")
    return limits

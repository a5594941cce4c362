"""The fixed properties of an Apple GPU, from torch, and its limitations."""

from collections.abc import Sequence
from types import ModuleType

import torch

from harness.device.accelerator import has_scaler
from harness.records.run import AmpMode, DeviceFacts, DeviceKind

# The first macOS with bfloat16 in Metal (`torch.backends.mps.is_macos_or_newer`).
_BF16_MACOS = (14, 0)


def list_mps() -> list[DeviceFacts]:
    """Return the Apple GPU if torch can train on it."""
    backend = torch.backends.mps
    return [mps_facts(backend)] if backend.is_available() else []


def mps_facts(backend: ModuleType) -> DeviceFacts:
    """Return the facts from `backend`, the module torch.backends.mps; only newer versions have name and
    cores.

    Memory is Metal's recommended maximum: the GPU shares the RAM. fp16 needs GradScaler's kernel for MPS,
    bf16 needs macOS 14.
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
    """Return the limitations of an Apple GPU, each a sentence with its reason."""
    limits = [
        "The peak of a step is a lower bound: torch tracks none for MPS, so memory is read at the ends of "
        "phases and, in long steps, 50 times per second.",
        "Device times come from two steps per second: reading an MPS event waits for the device.",
        "A breakdown of reserved memory and the memory of other programs are unavailable.",
        "Load, power, temperature and clocks are unavailable in torch; use macOS's `powermetrics`.",
        "Pinned memory does not apply where GPU and CPU share memory, and non-blocking copies corrupt data "
        "on MPS (pytorch/pytorch issues 139550 and 189690).",
        "torch.compile for MPS is a prototype and is not supported.",
    ]
    if AmpMode.BF16 not in facts.amp_modes:
        limits.append("bf16 needs macOS 14 or newer.")
    if AmpMode.FP16 not in facts.amp_modes:
        limits.append("fp16 needs a torch whose GradScaler has kernels for MPS; use bf16.")
    return limits

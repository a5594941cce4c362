"""Torch's capabilities for accelerators of every kind."""

import torch

_SCALER = "aten::_amp_foreach_non_finite_check_and_unscale_"


def has_scaler(key: str) -> bool:
    """Return whether this torch has the kernel that GradScaler needs, for a dispatch key such as "MPS";
    without it small fp16 gradients underflow."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(_SCALER, key))


def is_rocm() -> bool:
    """Return whether this is a ROCm build of torch, which exposes AMD GPUs under the names of torch.cuda."""
    return getattr(torch.version, "hip", None) is not None


def can_debug_syncs(device: torch.device) -> bool:
    """Return whether torch can report the calls that synchronize with this device
    (`torch.cuda.set_sync_debug_mode`)."""
    return device.type == "cuda"

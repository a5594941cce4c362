"""What torch offers for accelerators of every kind."""

import torch

_SCALER = "aten::_amp_foreach_non_finite_check_and_unscale_"


def has_scaler(key: str) -> bool:
    """Whether this torch has the kernel that GradScaler needs, for a dispatch key such as "MPS"; fp16
    autocast alone would let small gradients vanish."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(_SCALER, key))


def is_rocm() -> bool:
    """Whether torch is built for AMD's GPUs, which it then reaches under the names of torch.cuda."""
    return getattr(torch.version, "hip", None) is not None


def can_debug_syncs(device: torch.device) -> bool:
    """Whether torch can tell which calls wait for this device (`torch.cuda.set_sync_debug_mode`)."""
    return device.type == "cuda"

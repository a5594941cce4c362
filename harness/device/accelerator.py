"""Torch's capabilities for accelerators of every kind."""

import torch
from torch import Tensor

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


def computing_device(tensor: Tensor) -> torch.device:
    """Return the device that computes with `tensor`, nearly always the one that it is on.

    FSDP2's CPUOffloadPolicy keeps the shards of weights on the CPU, while their mesh is one of GPUs: it
    copies them to the current GPU, as `_get_device_from_mesh` of
    torch/distributed/fsdp/_fully_shard/_fsdp_init.py says.
    """
    kind = getattr(getattr(tensor, "device_mesh", None), "device_type", tensor.device.type)
    if kind in ("cpu", tensor.device.type):
        return tensor.device
    return torch.device(kind, torch.get_device_module(kind).current_device())

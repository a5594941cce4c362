"""CUPTI, the source of NVIDIA GPU events for PyTorch's profiler: its setup, and the diagnosis of its
failures."""

import os
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, supported_activities

# With the value 1, Kineto tears down CUPTI after a profile; otherwise CUPTI slows every later step by 10 to
# 20 % (pytorch/pytorch#144455, #146604).
TEARDOWN = "TEARDOWN_CUPTI"
# Before this CUDA version, the teardown of CUPTI crashes programs with CUDA graphs (pytorch/pytorch#146604).
_TEARS_DOWN_SINCE = (12, 6)
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
# Nsight injects itself through this variable (CUPTI's documentation).
_INJECTION = "CUDA_INJECTION64_PATH"


def prepare(environ: MutableMapping[str, str] = os.environ, cuda: str | None = torch.version.cuda) -> None:
    """Enable the teardown of CUPTI where it is safe, so that a profile does not slow later steps. Call this
    before the first profile."""
    parts = (cuda or "").split(".")
    if len(parts) >= 2 and tuple(int(part) for part in parts[:2]) >= _TEARS_DOWN_SINCE:
        environ.setdefault(TEARDOWN, "1")


def missing_kernels_reason(
    environ: Mapping[str, str] = os.environ,
    read_parameters: Callable[[], str] = lambda: _DRIVER_PARAMETERS.read_text(encoding="utf-8"),
    is_root: bool | None = None,
    can_record: bool | None = None,
) -> str:
    """Return the reason that no kernel was recorded, with what to do: the rest of a sentence after
    "because"."""
    if can_record is None:
        can_record = ProfilerActivity.CUDA in supported_activities()
    if not can_record:
        return "this PyTorch was built without CUPTI; install an official CUDA build of PyTorch."
    if environ.get(_INJECTION, "none") != "none":
        return (
            f"another profiler is attached ({_INJECTION} is set, as Nsight does); start the run without it."
        )
    try:
        is_restricted = "RmProfilingAdminOnly: 1" in read_parameters()
    except OSError:
        is_restricted = False
    if is_restricted and not (os.geteuid() == 0 if is_root is None else is_root):
        return (
            "the driver restricts profiling to administrators (ERR_NVGPUCTRPERM); set the driver's option "
            "NVreg_RestrictProfilingToAdminUsers=0, or add CAP_SYS_ADMIN to the container."
        )
    return (
        "CUPTI recorded no kernel: it is missing, or in use by another profiler (Nsight, DCGM's profiling "
        "metrics); the run's output has Kineto's message."
    )

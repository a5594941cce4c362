"""CUPTI, by which PyTorch's profiler sees an NVIDIA GPU: made ready, and asked why it shows nothing."""

import os
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, supported_activities

# Where this is 1, Kineto lets go of CUPTI after a profile; left on, CUPTI slows every later step by 10 to 20
# % (pytorch/pytorch#144455, #146604).
TEARDOWN = "TEARDOWN_CUPTI"
# Before this CUDA, letting go of CUPTI crashes programs that use CUDA graphs (pytorch/pytorch#146604).
_TEARS_DOWN_SINCE = (12, 6)
_DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
# By which Nsight gets into a program (CUPTI's documentation).
_INJECTION = "CUDA_INJECTION64_PATH"


def prepare(environ: MutableMapping[str, str] = os.environ, cuda: str | None = torch.version.cuda) -> None:
    """See to it that training is as fast after a profile as before, where that can be; before the first."""
    parts = (cuda or "").split(".")
    if len(parts) >= 2 and tuple(int(part) for part in parts[:2]) >= _TEARS_DOWN_SINCE:
        environ.setdefault(TEARDOWN, "1")


def why_nothing(
    environ: Mapping[str, str] = os.environ,
    read_parameters: Callable[[], str] = lambda: _DRIVER_PARAMETERS.read_text(encoding="utf-8"),
    is_root: bool | None = None,
    can_record: bool | None = None,
) -> str:
    """Why no kernel was recorded although the GPU worked, and what to do: a part of a sentence after
    "because"."""
    if can_record is None:
        can_record = ProfilerActivity.CUDA in supported_activities()
    if not can_record:
        return "this PyTorch was built without CUPTI; install one that PyTorch provides for CUDA."
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
            "the driver lets administrators alone profile (NVIDIA calls it ERR_NVGPUCTRPERM); ask for the "
            "driver's option NVreg_RestrictProfilingToAdminUsers=0, or for CAP_SYS_ADMIN in the container."
        )
    return (
        "CUPTI recorded no kernel: it is missing, or busy with another profiler (Nsight, DCGM's profiling "
        "metrics); the run's output has Kineto's own message."
    )

"""The doctor: checks of everything that a run depends on, with advice."""

import os
import platform
import sqlite3
import sys
from importlib.util import find_spec

import torch

from harness.catalog.packages import installed_version, obstacle
from harness.device.accelerator import is_rocm
from harness.device.cpu import facts as cpu_facts
from harness.device.cpu.heap import open_heap
from harness.device.cuda import facts as cuda_facts
from harness.device.cuda.cudnn import read_cudnn_version
from harness.device.doctor.accelerators import amd_limits, check_others
from harness.device.doctor.checks import check_cuda, check_cudnn, check_sqlite, tensor_cores
from harness.device.doctor.report import Check, DeviceReport, DoctorReport, Status
from harness.device.find import list_devices
from harness.device.mps.facts import mps_limits
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.xpu.facts import xpu_limits
from harness.records.run import AmpMode, DeviceFacts, DeviceKind


def run_checks() -> DoctorReport:
    """Run all checks. Takes about a second; touches no run and allocates nothing on a device."""
    devices = tuple(_device_report(facts) for facts in list_devices())
    checks = (
        _check_system(),
        Check("Python", Status.OK, f"{platform.python_version()} ({sys.executable})"),
        Check("PyTorch", Status.OK, torch.__version__),
        *_check_nvidia(),
        *check_others(),
        check_cudnn(read_cudnn_version()),
        check_sqlite(sqlite3.sqlite_version_info),
        _check_compiler(),
        _check_malloc(),
        _check_transformers(),
    )
    return DoctorReport(checks, devices)


def _device_report(facts: DeviceFacts) -> DeviceReport:
    return DeviceReport(facts, tensor_cores(facts.capability, facts.name), tuple(_limits(facts)))


def _limits(facts: DeviceFacts) -> list[str]:
    if facts.kind is DeviceKind.MPS:
        return list(mps_limits(facts))
    if facts.kind is DeviceKind.XPU:
        return list(xpu_limits(facts))
    limits = []
    if facts.kind is DeviceKind.CPU:
        obstacle = cpu_facts.compile_obstacle()
        limits.append("fp16 mixed precision needs a GPU; on the CPU bf16 is the 16-bit type.")
        limits.append("Pinned memory and CUDA events need a GPU.")
        if not facts.can_cap:
            limits.append("The memory cap and empty_cache need Linux and glibc's malloc, 2.33 or newer.")
    elif is_rocm():
        limits += amd_limits()
        obstacle = cuda_facts.compile_obstacle(None)
    else:
        capability = facts.capability or (0, 0)
        obstacle = cuda_facts.compile_obstacle(capability)
        if AmpMode.BF16 not in facts.amp_modes:
            limits.append(
                f"bf16 needs compute capability 8.0 (Ampere), this GPU has {capability[0]}.{capability[1]}; "
                "use fp16."
            )
    if obstacle is not None:
        limits.append(obstacle)
    return limits


def _check_system() -> Check:
    value = f"{platform.system()} {platform.release()}, {platform.machine()}"
    if platform.system() == "Linux":
        return Check("System", Status.OK, value)
    advice = "Stepscope targets Linux; elsewhere memory peaks and a cap on the CPU are unavailable."
    return Check("System", Status.WARNING, value, advice)


def _check_nvidia() -> tuple[Check, Check]:
    cuda = cuda_facts.probe_cuda()
    driver, driver_cuda, gpus = None, None, 0
    if is_rocm():
        value = f"torch {torch.__version__} is built for ROCm, not for CUDA"
        nvml_value = "not applicable: NVML is for NVIDIA GPUs"
        return (
            Check("CUDA and driver", Status.UNAVAILABLE, value),
            Check("NVML", Status.UNAVAILABLE, nvml_value),
        )
    try:
        nvml = Nvml()
    except NvmlUnavailableError as error:
        # Only a GPU without telemetry lacks something.
        status = Status.WARNING if cuda.devices else Status.UNAVAILABLE
        nvml_check = Check("NVML", status, error.reason, error.advice if cuda.devices else "")
    else:
        with nvml:
            driver, driver_cuda, gpus = nvml.driver_version(), nvml.cuda_version(), nvml.device_count()
        nvml_check = Check("NVML", Status.OK, f"driver {driver}, {gpus} GPU{'' if gpus == 1 else 's'}")
    cuda_check = check_cuda(
        torch_version=torch.__version__,
        built_for=torch.version.cuda,
        visible_gpus=cuda.devices,
        reason=cuda.reason,
        driver=driver,
        driver_cuda=driver_cuda,
        nvml_gpus=gpus,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
    return cuda_check, nvml_check


def _check_compiler() -> Check:
    obstacle = cpu_facts.compile_obstacle()
    if obstacle is None:
        return Check("torch.compile (CPU)", Status.OK, "C++ compiler and Python headers are installed")
    return Check("torch.compile (CPU)", Status.UNAVAILABLE, "cannot compile here", obstacle)


def _check_malloc() -> Check:
    libc, number = platform.libc_ver()
    if open_heap() is not None:
        return Check("CPU memory", Status.OK, f"malloc of {libc} {number} can be read, trimmed and capped")
    return Check(
        "CPU memory",
        Status.WARNING,
        "malloc cannot be read: on the CPU only the process's RSS is available",
        "Use Linux with glibc 2.33 or newer, and no other malloc in LD_PRELOAD.",
    )


def _check_transformers() -> Check:
    if find_spec("transformers") is None:
        advice = "For models such as hf-gpt2 and hf-bert: pip install 'stepscope[hf]'."
        return Check("transformers", Status.UNAVAILABLE, "not installed", advice)
    number = installed_version("transformers") or "installed, version unknown"
    reason = obstacle("transformers")
    if reason is not None:
        return Check("transformers", Status.UNAVAILABLE, number, f"A model such as hf-gpt2 {reason}.")
    return Check("transformers", Status.OK, number)

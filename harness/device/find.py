"""The available devices, and the resolution of "auto", "cpu", "cuda:1", "mps" or a GPU's UUID."""

import os
from collections.abc import Sequence
from typing import assert_never

import torch

from harness.device.accelerator import is_rocm
from harness.device.cpu.device import CpuDevice
from harness.device.cpu.facts import cpu_facts
from harness.device.cpu.heap import open_heap
from harness.device.cuda.device import CudaDevice
from harness.device.cuda.facts import cuda_facts, probe_cuda
from harness.device.mps.device import MpsDevice
from harness.device.mps.facts import list_mps
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.protocol import Device
from harness.device.selector import kind_of
from harness.device.xpu.device import XpuDevice
from harness.device.xpu.facts import list_xpu
from harness.errors import AbsentDeviceError, SettingError
from harness.records.run import DeviceFacts, DeviceKind


def list_devices() -> list[DeviceFacts]:
    """Return every device that torch can train on: GPUs in torch's order (CUDA, XPU, MPS), then the CPU."""
    return [*_gpus(), cpu_facts(open_heap())]


def open_device(selector: str, *, owns_process: bool = True) -> Device:
    """Open the device that `selector` names; see `choose` for allowed values and errors. In the process of a
    script (`owns_process` is false) the thread's current device and the allocator's peak counters stay as
    they are."""
    # Listing GPUs initializes CUDA, which a run on the CPU does not need.
    facts = None if selector.strip().lower() == "cpu" else choose(selector, _gpus())
    if facts is None:
        return CpuDevice.open()
    device = _open_gpu(facts, owns_peaks=owns_process)
    if owns_process:
        device.activate()
    return device


def _open_gpu(facts: DeviceFacts, *, owns_peaks: bool) -> Device:
    match facts.kind:
        case DeviceKind.CUDA:
            return CudaDevice(facts, owns_peaks=owns_peaks)
        case DeviceKind.XPU:
            return XpuDevice(facts, owns_peaks=owns_peaks)
        case DeviceKind.MPS:
            return MpsDevice(facts)
        case DeviceKind.CPU:
            return CpuDevice.open()
        case kind:
            assert_never(kind)


def choose(selector: str, gpus: Sequence[DeviceFacts]) -> DeviceFacts | None:
    """Return the GPU among `gpus` that `selector` names, None for the CPU.

    "auto" is the first GPU, else the CPU; "cuda", "xpu" and "mps" the first of their kind; "cuda:N" torch's
    ordinal; "GPU-…" or "MIG-…" a UUID or its beginning. Raises AbsentDeviceError when there is no such
    device, SettingError for an invalid or ambiguous selector.
    """
    word, kind = selector.strip().lower(), kind_of(selector)
    if word == "cpu" or (word == "auto" and not gpus):
        return None
    if word == "auto":
        return gpus[0]
    if word.startswith(("gpu-", "mig-")):
        matches = [facts for facts in gpus if facts.uuid is not None and facts.uuid.lower().startswith(word)]
    else:
        ordinal = int(word.partition(":")[2] or 0)
        matches = [facts for facts in gpus if (facts.kind, facts.ordinal) == (kind, ordinal)]
    if not matches:
        raise AbsentDeviceError(f"{selector.strip()} does not exist: {_available(word, gpus)}")
    if len(matches) > 1:
        fitting = ", ".join(str(facts.uuid) for facts in matches)
        raise SettingError(
            "device", f"device {selector!r} matches several GPUs: {fitting}; use more of the UUID."
        )
    return matches[0]


def _available(word: str, gpus: Sequence[DeviceFacts]) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    if not gpus:
        undetected = f"torch {torch.__version__} detects no {word.partition(':')[0]} device"
        reason = undetected if word.startswith(("xpu", "mps")) else probe_cuda().reason or undetected
        return f"{reason}{hidden}; choose cpu, or see `stepscope doctor`."
    listed = ", ".join(f"{facts.torch_name} {facts.name}" for facts in gpus)
    number = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    return f"this machine has {number}{hidden}: {listed}; choose one of these or cpu."


def _gpus() -> list[DeviceFacts]:
    return [*_cuda_gpus(), *list_xpu(), *list_mps()]


def _cuda_gpus() -> list[DeviceFacts]:
    gpus = [cuda_facts(ordinal) for ordinal in range(probe_cuda().devices)]
    if not gpus or is_rocm():
        return gpus
    try:
        nvml = Nvml()
    except NvmlUnavailableError:
        return gpus
    with nvml:
        return [facts._replace(power_limit_w=nvml.power_limit_w(facts.uuid or "")) for facts in gpus]

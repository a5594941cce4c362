"""Which devices there are, and the one a person means by "auto", "cpu", "cuda:1", "mps" or a GPU's UUID."""

import os
from collections.abc import Callable, Mapping, Sequence

import torch

from harness.device.accelerator import is_rocm
from harness.device.cpu import CpuDevice
from harness.device.cpu_facts import cpu_facts
from harness.device.cuda import CudaDevice
from harness.device.cuda_facts import cuda_facts, see_cuda
from harness.device.heap import open_heap
from harness.device.mps import MpsDevice
from harness.device.mps_facts import list_mps
from harness.device.nvml import Nvml, NvmlUnavailableError
from harness.device.protocol import Device
from harness.device.selector import kind_of
from harness.device.xpu import XpuDevice
from harness.device.xpu_facts import list_xpu
from harness.errors import AbsentDeviceError, SettingError
from harness.records import DeviceFacts, DeviceKind


def list_devices() -> list[DeviceFacts]:
    """Every device torch can train on here: GPUs in torch's order (CUDA, XPU, MPS), the CPU last."""
    return [*_gpus(), cpu_facts(open_heap())]


def open_device(selector: str) -> Device:
    """The device `selector` names, ready to train on; see `choose` for what it may be and what is raised."""
    # Looking for GPUs starts CUDA, which a run on the CPU can do without.
    facts = None if selector.strip().lower() == "cpu" else choose(selector, _gpus())
    if facts is None:
        return CpuDevice.open()
    device = _GPU_DEVICES[facts.kind](facts)
    device.activate()
    return device


_GPU_DEVICES: Mapping[DeviceKind, Callable[[DeviceFacts], Device]] = {
    DeviceKind.CUDA: CudaDevice,
    DeviceKind.XPU: XpuDevice,
    DeviceKind.MPS: MpsDevice,
}


def choose(selector: str, gpus: Sequence[DeviceFacts]) -> DeviceFacts | None:
    """The GPU among `gpus` that `selector` means, None for the CPU.

    "auto" is the first GPU, else the CPU; "cuda", "xpu" and "mps" the first of their kind; "cuda:N" torch's
    ordinal; "GPU-…" or "MIG-…" a UUID or the beginning of one. Raises AbsentDeviceError when such a device is
    not there, SettingError when the word means nothing or fits several.
    """
    word, kind = selector.strip().lower(), kind_of(selector)
    if word == "cpu" or (word == "auto" and not gpus):
        return None
    if word == "auto":
        return gpus[0]
    if word.startswith(("gpu-", "mig-")):
        found = [facts for facts in gpus if facts.uuid is not None and facts.uuid.lower().startswith(word)]
    else:
        ordinal = int(word.partition(":")[2] or 0)
        found = [facts for facts in gpus if (facts.kind, facts.ordinal) == (kind, ordinal)]
    if not found:
        raise AbsentDeviceError(f"{selector.strip()} is not there: {_what_there_is(word, gpus)}")
    if len(found) > 1:
        fitting = ", ".join(str(facts.uuid) for facts in found)
        raise SettingError(
            "device", f"device {selector!r} fits several GPUs: {fitting}; give more of the UUID."
        )
    return found[0]


def _what_there_is(word: str, gpus: Sequence[DeviceFacts]) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is {visible!r})"
    if not gpus:
        unseen = f"torch {torch.__version__} sees no {word.partition(':')[0]} device"
        reason = unseen if word.startswith(("xpu", "mps")) else see_cuda().reason or unseen
        return f"{reason}{hidden}; choose cpu, or see `stepscope doctor`."
    listed = ", ".join(f"{facts.torch_name} {facts.name}" for facts in gpus)
    number = "1 GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    return f"this machine shows {number}{hidden}: {listed}; choose one of these or cpu."


def _gpus() -> list[DeviceFacts]:
    return [*_cuda_gpus(), *list_xpu(), *list_mps()]


def _cuda_gpus() -> list[DeviceFacts]:
    gpus = [cuda_facts(ordinal) for ordinal in range(see_cuda().devices)]
    if not gpus or is_rocm():
        return gpus
    try:
        nvml = Nvml()
    except NvmlUnavailableError:
        return gpus
    with nvml:
        return [facts._replace(power_limit_w=nvml.power_limit_w(facts.uuid or "")) for facts in gpus]

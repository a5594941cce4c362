"""Opens the sources of telemetry and of memory shares that this machine and its device offer."""

import torch

from harness.device.host.probe import CpuTelemetry
from harness.device.memory_share import FreeMemoryShare, MemoryShare, NvmlShare, RamShare, UnknownShare
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.nvml.telemetry import NvmlTelemetry
from harness.device.protocol import Device, Telemetry
from harness.device.torch_telemetry import open_telemetry
from harness.records.run import DeviceKind
from harness.watch.context import RunContext


def open_sources(context: RunContext) -> list[Telemetry]:
    """The CPU always, and the GPU trained on when NVML, or else torch, can be read."""
    device, warn = context.device, context.warn
    sources: list[Telemetry] = [CpuTelemetry()]
    if (of_torch := open_telemetry(device, lambda text: warn("telemetry", text))) is not None:
        sources.append(of_torch)
    if (uuid := device.facts.uuid) is not None:
        try:
            sources.append(NvmlTelemetry(Nvml(), [uuid], lambda text: warn("NVML", text)))
        except NvmlUnavailableError as error:
            warn("NVML", str(error))
    return sources


def open_memory_share(device: Device) -> MemoryShare:
    """The share of the device's memory that this process has; not known where NVML cannot be read, nor on
    Apple's GPUs, which share the memory of all processes."""
    kind, uuid = device.facts.kind, device.facts.uuid
    if kind is DeviceKind.CPU:
        return RamShare()
    if uuid is None:
        return UnknownShare() if kind is DeviceKind.MPS else FreeMemoryShare(device.read_memory_info)
    try:
        return NvmlShare(Nvml(), uuid, lambda: torch.cuda.memory_reserved(device.torch_device))
    except NvmlUnavailableError:  # Said already, when telemetry was begun.
        return UnknownShare()

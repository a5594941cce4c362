"""Telemetry sources and memory shares available for this machine and its device."""

import torch

from harness.device.cuda.allocator import has_statistics
from harness.device.host.probe import CpuTelemetry
from harness.device.memory_share import FreeMemoryShare, MemoryShare, NvmlShare, RamShare, UnknownShare
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.nvml.telemetry import NvmlTelemetry
from harness.device.protocol import Device, Telemetry
from harness.device.torch_telemetry import open_telemetry
from harness.records.run import DeviceKind
from harness.watch.context import RunContext


def open_sources(context: RunContext) -> list[Telemetry]:
    """Open the CPU's source and, where NVML or torch provides one, the training GPU's."""
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
    """Open the process's share of the device's memory; unavailable without NVML and on Apple's GPUs, which
    use the memory of all processes."""
    kind, uuid = device.facts.kind, device.facts.uuid
    if kind is DeviceKind.CPU:
        return RamShare()
    if uuid is None:
        return UnknownShare() if kind is DeviceKind.MPS else FreeMemoryShare(device.read_memory_info)

    def reserved_bytes() -> int | None:
        return torch.cuda.memory_reserved(device.torch_device) if has_statistics() else None

    try:
        return NvmlShare(Nvml(), uuid, reserved_bytes)
    except NvmlUnavailableError:  # `open_sources` has warned.
        return UnknownShare()

"""The device on which memory ran out: a model may be on several GPUs, and a run records the memory of one."""

from typing import NamedTuple

import torch

from harness.analysis.oom.error import gpu_index
from harness.device.protocol import Device
from harness.records.run import MemoryReading
from harness.watch.oom.errors import attempt


class FailedDevice(NamedTuple):
    """The device that refused the request: the run's own, or another of its kind.

    `device` and `memory`, its reading at the failure, are None where they cannot be read. `name` is for
    people, with torch's name if it is not the run's own. `note` is a caveat for the reader; None if it is.
    """

    device: Device | None
    torch_device: torch.device
    memory: MemoryReading | None
    name: str
    note: str | None = None

    @property
    def is_own(self) -> bool:
        """Return whether it is the one that the run records the memory of."""
        return self.note is None


def failed_device(text: str, own: Device, memory: MemoryReading | None) -> FailedDevice:
    """Return the device that the text of an error names, in torch's order, as `own`, the run's device, is
    numbered too; `own` where it names none. `memory` is the reading of `own` at the failure."""
    index, facts = gpu_index(text), own.facts
    if index is None or facts.ordinal in (None, index):
        return FailedDevice(own, own.torch_device, memory, facts.name)
    name = f"{facts.kind.value}:{index}"
    note = (
        f"Memory ran out on {name}, and the run records the memory of {facts.torch_name}: baseline, peaks, "
        f"leaks and allocation sites of {name} are not known."
    )
    other = attempt(lambda: own.sibling(index))
    if other is None:
        return FailedDevice(None, torch.device(own.torch_device.type, index), None, name, note)
    reading = attempt(other.read_memory)
    return FailedDevice(other, other.torch_device, reading, f"{other.facts.name} ({name})", note)

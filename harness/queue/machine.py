"""The devices of this machine and their free memory, without importing torch."""

import subprocess
from collections.abc import Callable
from typing import Any, Protocol

import pynvml

from harness.device.cpu.facts import cpu_facts
from harness.device.cpu.heap import open_heap
from harness.device.doctor.child import run_doctor
from harness.device.doctor.report import from_json
from harness.device.host.memory import read_host_memory
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.device.selector import may_exist
from harness.errors import StepscopeError
from harness.queue.placing import QueueDevice
from harness.records.run import DeviceFacts, DeviceKind

_GONE = "the driver does not list it any more"


class Machine(Protocol):
    """The devices on which the queue starts runs."""

    def devices(self) -> list[QueueDevice]:
        """Return the devices with their free memory, GPUs first. Raises StepscopeError."""
        ...


def examine_devices() -> list[DeviceFacts]:
    """Return the devices that torch can train on, from the doctor in a child process if there may be a GPU:
    listing GPUs takes memory on them as long as the process lives. Raises StepscopeError."""
    if not any(may_exist(kind) for kind in (DeviceKind.CUDA, DeviceKind.XPU, DeviceKind.MPS)):
        return [cpu_facts(open_heap())]
    try:
        done = run_doctor()
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepscopeError(f"The devices could not be listed: {error}; see `stepscope doctor`.") from None
    return [report.facts for report in from_json(done.stdout).devices]


class ThisMachine:
    """This machine. Its devices are listed again when the driver's list of GPUs changes."""

    def __init__(
        self, examine: Callable[[], list[DeviceFacts]] = examine_devices, library: Any = pynvml
    ) -> None:
        """`library` is the module pynvml, or its fake."""
        self._examine = examine
        self._library = library
        self._facts: list[DeviceFacts] = []
        self._listed: frozenset[str] | None = None

    def devices(self) -> list[QueueDevice]:
        """Return the devices with their free memory, GPUs first. Raises StepscopeError."""
        free_bytes = self._free_bytes()
        listed = frozenset(free_bytes)
        # A GPU that has gone is still waited for; torch lists a new one only in a new process.
        if self._listed is None or not listed <= self._listed:
            self._facts = self._examine()
            self._listed = listed
        return [self._device(facts, free_bytes) for facts in self._facts]

    def _device(self, facts: DeviceFacts, free_bytes: dict[str, int | None]) -> QueueDevice:
        if facts.kind is DeviceKind.CPU:
            return QueueDevice(facts, read_host_memory().free_bytes)
        if facts.uuid is None:
            return QueueDevice(facts, None)
        if facts.uuid not in free_bytes:
            return QueueDevice(facts, None, problem=_GONE)
        return QueueDevice(facts, free_bytes[facts.uuid])

    def _free_bytes(self) -> dict[str, int | None]:
        """Return the free memory of each GPU that the driver lists, by UUID."""
        try:
            with Nvml(self._library) as nvml:
                return nvml.free_bytes([facts.uuid for facts in self._facts if facts.uuid is not None])
        except NvmlUnavailableError:
            return {}

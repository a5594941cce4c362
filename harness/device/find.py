"""Which devices there are, and the one a person means by "auto", "cpu", "cuda:1" or a GPU's UUID."""

from harness.device.cpu import CpuDevice
from harness.device.cpu_facts import cpu_facts
from harness.device.heap import open_heap
from harness.device.protocol import Device
from harness.errors import SettingError
from harness.records import DeviceFacts


def list_devices() -> list[DeviceFacts]:
    """Every device torch can train on here, the CPU last."""
    return [cpu_facts(open_heap())]


def open_device(selector: str) -> Device:
    """The device `selector` names, ready to train on. Raises SettingError and DeviceError."""
    if selector.strip().lower() in ("auto", "cpu"):
        return CpuDevice.open()
    raise SettingError("device", f"device cannot be {selector!r}; allowed: auto, cpu.")

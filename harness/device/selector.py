"""Validation of the setting `device`, and the check for absent devices, without importing torch."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from harness.errors import AbsentDeviceError, SettingError
from harness.records.run import DeviceKind

# The device nodes of the drivers of CUDA and ROCm GPUs: NVIDIA, Tegra, WSL, AMD.
_DRIVER_NODES = ("nvidiactl", "nvidia0", "nvhost-ctrl-gpu", "nvhost-gpu", "nvmap", "nvgpu", "dxg", "kfd")


class Platform(NamedTuple):
    """The properties of the system that exclude a device before torch is imported."""

    system: str
    dev: Path
    # The text of torch's version.py; None without torch or that file.
    torch_versions: str | None

    @classmethod
    def current(cls) -> "Platform":
        """Return the properties for this process."""
        spec = find_spec("torch")
        file = None if spec is None or spec.origin is None else Path(spec.origin).with_name("version.py")
        is_readable = file is not None and file.is_file()
        return cls(
            sys.platform,
            Path("/dev"),
            file.read_text(encoding="utf-8", errors="replace") if file is not None and is_readable else None,
        )

    def lacks(self, *toolkits: str) -> bool:
        """Return whether torch was built with none of these toolkits."""
        versions = self.torch_versions
        return versions is not None and all(
            re.search(rf"^{toolkit}\b[^=\n]*= None\s*$", versions, re.MULTILINE) for toolkit in toolkits
        )


def kind_of(selector: str) -> DeviceKind | None:
    """Return the kind of GPU that `selector` names, None for "cpu" and "auto". Raises SettingError for an
    invalid selector."""
    word = selector.strip().lower()
    if word in ("cpu", "auto"):
        return None
    if match := re.fullmatch(r"(cuda|xpu|mps)(:\d+)?", word):
        return DeviceKind(match[1])
    if re.fullmatch(r"(gpu|mig)-[0-9a-f-]*", word):
        return DeviceKind.CUDA
    raise SettingError(
        "device",
        f"device cannot be {selector!r}; allowed: auto, cpu, cuda:N, xpu:N, mps, or an NVIDIA GPU's "
        "UUID or its beginning (GPU-…); `stepscope doctor` lists them.",
    )


def refuse_absent(selector: str, platform: Platform | None = None) -> None:
    """Raise AbsentDeviceError when the named device cannot exist, and SettingError for an invalid selector.
    Only torch can confirm that a device exists."""
    kind = kind_of(selector)
    if kind is None:
        return
    reason = _absence(kind, platform or Platform.current())
    if reason is not None:
        raise AbsentDeviceError(
            f"{selector.strip()} does not exist: {reason}; choose cpu, or see `stepscope doctor`."
        )


def may_exist(kind: DeviceKind, platform: Platform | None = None) -> bool:
    """Return whether there may be a GPU of this kind. Only torch can confirm that."""
    return _absence(kind, platform or Platform.current()) is None


def _absence(kind: DeviceKind, platform: Platform) -> str | None:
    match kind:
        case DeviceKind.CUDA:
            if platform.lacks("cuda", "hip"):
                return "the installed torch is built without CUDA"
            is_linux = platform.system == "linux"
            if is_linux and not any((platform.dev / node).exists() for node in _DRIVER_NODES):
                return "no GPU driver is loaded (there is no /dev/nvidiactl)"
        case DeviceKind.XPU if platform.lacks("xpu"):
            return "the installed torch is built without XPU"
        case DeviceKind.MPS if platform.system != "darwin":
            return "MPS is available only on macOS"
    return None

"""What the setting `device` may say, and which devices cannot be there: known without importing torch."""

import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from harness.errors import AbsentDeviceError, SettingError
from harness.records import DeviceKind

# Through one of these the CUDA and ROCm libraries reach a GPU: NVIDIA's driver, Tegra's, WSL's, AMD's.
_DRIVER_NODES = ("nvidiactl", "nvidia0", "nvhost-ctrl-gpu", "nvhost-gpu", "nvmap", "nvgpu", "dxg", "kfd")


class Surroundings(NamedTuple):
    """What decides, before torch is imported, that a device cannot be there."""

    platform: str
    dev: Path
    # The text of torch's version.py; None where torch, or that file, is not found.
    torch_versions: str | None

    @classmethod
    def here(cls) -> "Surroundings":
        """Those of this process."""
        spec = find_spec("torch")
        file = None if spec is None or spec.origin is None else Path(spec.origin).with_name("version.py")
        is_readable = file is not None and file.is_file()
        return cls(
            sys.platform,
            Path("/dev"),
            file.read_text(encoding="utf-8", errors="replace") if file is not None and is_readable else None,
        )

    def lacks(self, *toolkits: str) -> bool:
        """Whether torch says that it was built with none of these."""
        versions = self.torch_versions
        return versions is not None and all(
            re.search(rf"^{toolkit}\b[^=\n]*= None\s*$", versions, re.MULTILINE) for toolkit in toolkits
        )


def kind_of(selector: str) -> DeviceKind | None:
    """The kind of GPU that `selector` names, None for "cpu" and "auto". Raises SettingError for a word that
    means nothing."""
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


def refuse_absent(selector: str, surroundings: Surroundings | None = None) -> None:
    """Raise AbsentDeviceError when the device that `selector` names cannot be there, and SettingError when
    it names none. Says nothing of a device that may be there: only torch can tell."""
    kind = kind_of(selector)
    if kind is None:
        return
    reason = _absence(kind, surroundings or Surroundings.here())
    if reason is not None:
        raise AbsentDeviceError(
            f"{selector.strip()} is not there: {reason}; choose cpu, or see `stepscope doctor`."
        )


def _absence(kind: DeviceKind, surroundings: Surroundings) -> str | None:
    match kind:
        case DeviceKind.CUDA:
            if surroundings.lacks("cuda", "hip"):
                return "the installed torch is built without CUDA"
            is_linux = surroundings.platform == "linux"
            if is_linux and not any((surroundings.dev / node).exists() for node in _DRIVER_NODES):
                return "no driver of a GPU is loaded (there is no /dev/nvidiactl)"
        case DeviceKind.XPU if surroundings.lacks("xpu"):
            return "the installed torch is built without XPU"
        case DeviceKind.MPS if surroundings.platform != "darwin":
            return "MPS exists on macOS alone"
    return None

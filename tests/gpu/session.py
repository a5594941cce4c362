"""The facts of the machine that a call of `make gpu-check` runs on, as a line of JSON: a process of its own,
since looking at a GPU starts CUDA."""

import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from harness.device.find import open_device
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.errors import StepscopeError
from tests.gpu.container import container_signs

_ROOT = Path(__file__).parents[2]


def facts(selector: str) -> dict[str, Any]:
    """The card and the software. Raises DeviceError when there is no such device."""
    device = open_device(selector).facts
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "card": device.name,
        "memory_bytes": device.memory_bytes,
        "multiprocessors": device.multiprocessors,
        "capability": device.capability,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "driver": _driver(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpu": platform.processor() or platform.machine(),
        "container": container_signs(),
        "commit": _commit(),
    }


def _driver() -> str | None:
    try:
        with Nvml() as nvml:
            return nvml.driver_version()
    except NvmlUnavailableError:
        return None


def _commit() -> str | None:
    """The commit that is checked out; None where there is no git."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def main() -> int:
    """Print the facts, or why there are none."""
    try:
        print(json.dumps(facts(sys.argv[1])))
    except StepscopeError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

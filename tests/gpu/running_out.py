"""Ways to run out of a GPU's memory: `python -m tests.gpu.running_out CASE…`.

Prints one line of JSON per case: the error's class and text as they come, and what the harness makes of them.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from harness.analysis.oom.error import read_error
from harness.device.find import open_device
from harness.device.protocol import Device
from harness.watch.memory import MemoryWatch
from harness.watch.oom.errors import is_ambiguous, is_out_of_memory

MIB = 1 << 20
_HELD_BY_OTHER = 2048 * MIB
_LEFT = 8 * MIB
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*", re.MULTILINE)


def _fill(device: Device, left_bytes: int) -> list[torch.Tensor]:
    """Take all but `left_bytes` of the card and up to 12 MiB more: requests below 10 MiB would take 20."""
    taken = []
    for size in (1024 * MIB, 64 * MIB, 12 * MIB):
        while (device.read_memory_info().free_bytes or 0) > left_bytes + size:
            try:
                taken.append(torch.empty(size, dtype=torch.uint8, device=device.torch_device))
            except torch.OutOfMemoryError:
                break
    return taken


def _allocate(device: Device, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device.torch_device)


def _cap(device: Device) -> None:
    device.cap_memory(256 * MIB)
    _allocate(device, 512 * MIB)


def _too_large(device: Device) -> None:
    _allocate(device, 2 * (device.read_memory_info().total_bytes or 0))


def _full_card(device: Device) -> None:
    blocks = _fill(device, 64 * MIB)
    _allocate(device, 512 * MIB)
    del blocks


def _other_process(device: Device) -> None:
    with _holder():
        _full_card(device)


def _cublas(device: Device) -> None:
    """The handle and the workspace of cuBLAS on a full card."""
    matrix = torch.ones(512, 512, device=device.torch_device)
    blocks = _fill(device, _LEFT)
    torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    del blocks


def _cudnn(device: Device) -> None:
    """A convolution whose output fits and whose workspace does not."""
    images = torch.ones(32, 64, 128, 128, device=device.torch_device)
    weights = torch.ones(64, 64, 3, 3, device=device.torch_device)
    output = torch.empty(32, 64, 128, 128, device=device.torch_device)
    del output
    blocks = _fill(device, _LEFT)
    functional.conv2d(images, weights, padding=1)
    torch.cuda.synchronize()
    del blocks


def _pinned(device: Device) -> None:
    """Page-locked memory of the host, more than any has."""
    torch.empty(1 << 46, dtype=torch.uint8, pin_memory=True)


def _context_on_full_card(device: Device) -> None:
    """A second process whose context finds no memory; its error is passed on."""
    blocks = _fill(device, 4 * MIB)
    done = subprocess.run(
        [sys.executable, "-c", "import torch; torch.ones(1, device='cuda')"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    del blocks
    if done.returncode:
        raise RuntimeError(last_error(done.stderr))


def last_error(stderr: str) -> str:
    """The last exception that a process wrote to stderr, with all lines of its text."""
    result = list(_EXCEPTION.finditer(stderr))
    return stderr[result[-1].start() :].strip() if result else stderr.strip()[-400:]


CASES: Mapping[str, Callable[[Device], None]] = {
    "cap": _cap,
    "too large": _too_large,
    "full card": _full_card,
    "full card, another process": _other_process,
    "cuBLAS on a full card": _cublas,
    "cuDNN on a full card": _cudnn,
    "pinned memory": _pinned,
    "context on a full card": _context_on_full_card,
}


@contextmanager
def _holder() -> Iterator[None]:
    """Another process that holds memory of the card."""
    code = (
        f"import torch; kept = torch.empty({_HELD_BY_OTHER}, dtype=torch.uint8, device='cuda');"
        "print('ready', flush=True); input()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()


def provoke(device: Device, case: Callable[[Device], None]) -> dict[str, Any]:
    """The error of the case, verbatim, and what is read from it; `text` None: there was no error."""
    device.begin_memory()
    watch = MemoryWatch(device)
    watch.restart(steps=5)
    try:
        case(device)
    except (RuntimeError, MemoryError) as error:
        reading = device.read_memory()
        return {
            "class": type(error).__name__,
            "text": str(error),
            "is_out_of_memory": is_out_of_memory(error),
            "is_ambiguous": is_ambiguous(error),
            "allocator_failed": watch.has_failures(reading),
            "reserved_bytes": reading.reserved_bytes,
            "numbers": read_error(str(error), reading.reserved_bytes)._asdict(),
        }
    finally:
        device.cap_memory(None)
    return {"class": None, "text": None}


def main() -> int:
    """Run the cases that the command line names."""
    device = open_device("cuda")
    for name in sys.argv[1:]:
        print(json.dumps({"case": name, **provoke(device, CASES[name])}), flush=True)
        device.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Memory of typical kernels on this machine, for `doctor`: measured once in a child process (`python -m
harness.predict.probe`, which alone imports torch), then stored in the home."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from harness import words
from harness.files.regular import read_whole, write_private
from harness.predict.process import child_environment
from harness.predict.processor import Processor, this_processor
from harness.predict.question import REVISION, torch_version
from harness.records import json as row_json

if TYPE_CHECKING:
    from harness.predict.calls import Call

_FILE = "kernels.json"
_COMMAND = (sys.executable, "-P", "-m", "harness.predict.probe")
_TIMEOUT_S = 60.0
_MOST_BYTES = 64 << 10


class KernelMemory(NamedTuple):
    """A kernel's own memory in bytes: retained after its first call, and the high-water mark of a call."""

    name: str
    retained_bytes: int
    temporary_bytes: int


class KernelReport(NamedTuple):
    """Memory of typical kernels with `threads` torch threads on `processor` under this version of torch."""

    revision: int
    torch: str
    processor: Processor
    threads: int
    kernels: tuple[KernelMemory, ...]

    @property
    def words(self) -> str:
        """The report as one line."""
        variables = "".join(f", {name}={value}" for name, value in self.processor.variables)
        kernels = "; ".join(
            f"{k.name} {words.size(k.temporary_bytes)} and {words.size(k.retained_bytes)}"
            if k.temporary_bytes or k.retained_bytes
            else f"{k.name} none"
            for k in self.kernels
        )
        threads = words.plural(self.threads, "thread")
        return f"{threads}{variables}; during a call, and kept after the first one: {kernels}"


def kernel_report(home: Path, *, measures: bool) -> KernelReport | None:
    """Return the current report for this machine: from the file in `home`, else measured (some seconds) if
    `measures` is true. None if unavailable."""
    path = home / _FILE
    try:
        stored = row_json.from_json(KernelReport, read_whole(path, _MOST_BYTES).decode())
        if (stored.revision, stored.torch, stored.processor) == (REVISION, torch_version(), this_processor()):
            return stored
    except (OSError, ValueError):
        pass
    return _measured(path) if measures else None


def _measured(path: Path) -> KernelReport | None:
    try:
        done = subprocess.run(
            _COMMAND,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=child_environment(os.environ),
            timeout=_TIMEOUT_S,
            check=True,
        )
        report = row_json.from_json(KernelReport, done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    with suppress(OSError):  # It is measured again next time.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, done.stdout)
    return report


def main() -> int:
    """Measure, and print the report."""
    from harness.predict.context import run_threads
    from harness.predict.kernels import Kernels

    threads = run_threads()
    with Kernels(threads) as kernels:
        footprints = [(name, kernels.measure(call)) for name, call in _typical_calls()]
    rows = tuple(KernelMemory(name, *row[:2]) for name, row in footprints if row is not None)
    report = KernelReport(REVISION, torch_version(), this_processor(), threads, rows)
    print(row_json.to_json(report))
    return 0


def _typical_calls() -> Iterator[tuple[str, "Call"]]:
    """Yield the products of a small layer and its gradient, in both precisions, and a small convolution."""
    import torch

    from harness.predict.calls import Call

    aten = torch.ops.aten
    images, weight = torch.zeros(32, 16, 16, 16), torch.zeros(32, 16, 3, 3)
    shape = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    calls = [("convolution", Call.of(aten.convolution.default, (images, weight, None, *shape), {}))]
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        left, right = torch.zeros(4096, 64, dtype=dtype), torch.zeros(4096, 256, dtype=dtype)
        calls.append((f"{name} product", Call.of(aten.mm.default, (left, right[:64]), {})))
        calls.append((f"{name} gradient", Call.of(aten.mm.default, (left.t(), right), {})))
    for name, call in calls:
        assert call is not None
        yield name, call


if __name__ == "__main__":
    sys.exit(main())

"""A window of steps under PyTorch's profiler: what was at work in it, and its trace as a file."""

import gc
import gzip
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile, schedule

from harness import words
from harness.errors import StepscopeError
from harness.profiling.summing import Work

WARM_UP_STEPS = 1
"""Steps in which the profiler is on already and keeps nothing: its own start falls into them."""
MOST_FILE_BYTES = 32 << 20
"""How large a compressed trace is kept."""
_STEP = "ProfilerStep"


class Profiled(NamedTuple):
    """What a window gave; `operators` ran on the CPU, `kernels` on the device."""

    operators: list[Work]
    kernels: list[Work]
    file_bytes: int | None
    """None when no trace was kept; then `cut` says why."""
    cut: str


class ProfilerWindow:
    """One window, with a profiler of its own. Used on the training thread, between steps.

    Attributes:
        found: what it gave, once its steps were taken.
    """

    def __init__(self, steps: int, path: Path, is_cuda: bool, most_bytes: int = MOST_FILE_BYTES) -> None:
        """`path` is the trace's, `….json.gz`."""
        self._path = path
        self._most_bytes = most_bytes
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=WARM_UP_STEPS, active=steps, repeat=1),
            on_trace_ready=self._read,
        )
        self.found: Profiled | None = None
        self._is_on = False

    def start(self) -> None:
        """Begin. Raises StepscopeError when another profiler is at work: it would lose what it has."""
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            raise StepscopeError("another profiler is at work in this run.")
        self._is_on = True
        self._profile.start()

    def end_step(self) -> None:
        """A step has ended; the last one makes `found`."""
        self._profile.step()

    def stop(self) -> None:
        """Leave nothing behind; what was not finished is lost. Idempotent."""
        if not self._is_on:
            return
        self._is_on = False
        self._profile.on_trace_ready = None
        try:
            self._profile.stop()
        finally:
            del self._profile
            gc.collect()

    def _read(self, profiled: Any) -> None:
        operators, kernels = [], []
        for row in profiled.key_averages():
            if row.key.startswith(_STEP) or getattr(row, "is_user_annotation", False):
                continue
            if row.device_type == DeviceType.CPU:
                operators.append(Work(row.key, row.count, float(row.self_cpu_time_total)))
            else:
                kernels.append(Work(row.key, row.count, _device_us(row)))
        size, cut = _write(profiled, self._path, self._most_bytes)
        self.found = Profiled(operators, kernels, size, cut)


def _device_us(row: Any) -> float:
    """A kernel's own time; the field is named otherwise since PyTorch 2.5."""
    found = getattr(row, "self_device_time_total", None)
    return float(row.self_cuda_time_total if found is None else found)


def _write(profiled: Any, path: Path, most_bytes: int) -> tuple[int | None, str]:
    """Keep the trace, compressed and for its owner only, when it is not too large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain, partial = path.with_suffix(".plain"), path.with_suffix(".partial")
    try:
        for file in (plain, partial):
            os.close(os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
        profiled.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(partial, "wb", compresslevel=3) as target:
            shutil.copyfileobj(source, target)
        size = partial.stat().st_size
        if size > most_bytes:
            return None, (
                f"Its trace has {words.size(size)}, more than the {words.size(most_bytes)} that are kept, "
                "and was left out; profile fewer steps."
            )
        os.replace(partial, path)
        return size, ""
    except OSError as error:
        raise StepscopeError(f"The trace could not be written: {error.strerror or error}.") from None
    finally:
        plain.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)

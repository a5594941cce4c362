"""A window of steps under PyTorch's profiler: what was recorded in it, and its trace as a file."""

import gzip
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

from harness import words
from harness.errors import StepscopeError
from harness.profiling.asked import Asked
from harness.profiling.events import Event, read
from harness.records import DeviceKind

# Steps in which the profiler is on already and keeps nothing: its own start falls into them.
WARM_UP_STEPS = 1
# How large a compressed trace is kept.
MOST_FILE_BYTES = 32 << 20


class Recorded(NamedTuple):
    """What a window gave."""

    events: Sequence[Event]
    # None when no trace was kept; then `cut` says why.
    file_bytes: int | None
    cut: str


def sees_kernels(kind: DeviceKind) -> bool:
    """Whether the profiler looks at this kind of device; of others it sees the operators on the CPU. A CUDA
    device of which it sees nothing is an error; Intel's it sees only where PyTorch was built for that."""
    if kind is DeviceKind.XPU:
        return ProfilerActivity.XPU in supported_activities()
    return kind is DeviceKind.CUDA


class ProfilerWindow:
    """One window, with a profiler of its own. Used on the training thread, between steps.

    Attributes:
        found: what it gave, once its steps were taken.
    """

    def __init__(self, asked: Asked, path: Path, kind: DeviceKind, most_bytes: int = MOST_FILE_BYTES) -> None:
        """`path` is the trace's, `….json.gz`."""
        self._path = path
        self._most_bytes = most_bytes
        self._is_on_device = sees_kernels(kind)
        activities = [ProfilerActivity.CPU]
        if self._is_on_device:
            activities.append(ProfilerActivity.CUDA if kind is DeviceKind.CUDA else ProfilerActivity.XPU)
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=WARM_UP_STEPS, active=asked.steps, repeat=1),
            on_trace_ready=self._read,
            profile_memory=asked.with_memory,
            with_stack=asked.with_stacks,
        )
        self.found: Recorded | None = None
        self._is_on = False

    def start(self) -> None:
        """Begin. Raises StepscopeError when another profiler is at work: it would lose what it has."""
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            raise StepscopeError("another profiler is at work in this run; stop it first.")
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
            self._profile.profiler = None  # What it recorded: the profile itself is part of a cycle.

    def _read(self, profiled: Any) -> None:
        events = read(profiled.profiler.kineto_results.events(), self._is_on_device)
        size, cut = _write(profiled, self._path, self._most_bytes)
        self.found = Recorded(events, size, cut)


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

"""A window of steps under PyTorch's profiler: its events, and its trace as a file."""

import gzip
import os
import shutil
import warnings
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, schedule, supported_activities

from harness import words
from harness.errors import StepscopeError
from harness.profiling.events import Event, read
from harness.profiling.options import ProfileOptions
from harness.records.run import DeviceKind

# Steps in which the profiler is on and records nothing, because of its own startup.
WARM_UP_STEPS = 1
_KINETO_LEVEL, _SILENT = "KINETO_LOG_LEVEL", "99"
# The largest compressed trace that is stored.
MOST_FILE_BYTES = 32 << 20


class ProfilerResult(NamedTuple):
    """The result of a window."""

    events: Sequence[Event]
    # None when no trace was stored, for the reason in `cut`.
    file_bytes: int | None
    cut: str


def records_kernels(kind: DeviceKind) -> bool:
    """Return whether the profiler records kernels of this kind of device; of others it records only operators
    on the CPU. It is an error if it records none of a CUDA device; XPU depends on the build of PyTorch."""
    if kind is DeviceKind.XPU:
        return ProfilerActivity.XPU in supported_activities()
    return kind is DeviceKind.CUDA


class ProfilerWindow:
    """One window with its own profiler. Used on the training thread, between steps.

    Attributes:
        result: the result, once its steps have finished.
    """

    def __init__(
        self,
        options: ProfileOptions,
        path: Path,
        kind: DeviceKind,
        most_bytes: int = MOST_FILE_BYTES,
        ordinal: int | None = None,
    ) -> None:
        """`path` is that of the trace, `….json.gz`; `ordinal` is the index of the device of the training."""
        self._path = path
        self._most_bytes = most_bytes
        self._is_on_device = records_kernels(kind)
        self._kind, self._ordinal = kind, ordinal
        activities = [ProfilerActivity.CPU]
        if self._is_on_device:
            activities.append(ProfilerActivity.CUDA if kind is DeviceKind.CUDA else ProfilerActivity.XPU)
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=WARM_UP_STEPS, active=options.steps, repeat=1),
            on_trace_ready=self._read,
            profile_memory=options.with_memory,
            with_stack=options.with_stacks,
        )
        self.result: ProfilerResult | None = None
        self._is_on = False

    def start(self) -> None:
        """Start the profiler. Raises StepscopeError when another one is active, which would lose its data."""
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            raise StepscopeError("another profiler is active in this run; stop it first.")
        with warnings.catch_warnings():
            # Before torch 2.13 a start warns that events of earlier cycles are cleared; there is one cycle.
            warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
            with self._on_device() if self._is_on_device else _silent_kineto():
                self._profile.start()
        self._is_on = True  # To stop one that did not start ends the process.

    def end_step(self) -> None:
        """End a step; the last one sets `result`."""
        with self._on_device():
            self._profile.step()

    def stop(self) -> None:
        """Stop and discard an unfinished recording. Idempotent."""
        if not self._is_on:
            return
        self._is_on = False
        self._profile.on_trace_ready = None
        try:
            with self._on_device():
                self._profile.stop()
        finally:
            self._profile.profiler = None  # Frees the events: the profile itself is part of a cycle.

    def _on_device(self) -> AbstractContextManager[object]:
        """Make the device the current one of the thread: torch's profiler waits for that one, and would
        create a context on a GPU that the training does not use."""
        if self._ordinal is None or not self._is_on_device:
            return nullcontext()
        library: Any = torch.cuda if self._kind is DeviceKind.CUDA else torch.xpu
        device: AbstractContextManager[object] = library.device(self._ordinal)
        return device

    def _read(self, profiled: Any) -> None:
        events = read(profiled.profiler.kineto_results.events(), self._is_on_device)
        size, cut = _write(profiled, self._path, self._most_bytes)
        self.result = ProfilerResult(events, size, cut)


@contextmanager
def _silent_kineto(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Have Kineto print nothing, if it starts for the first time: it reads its level then. On the CPU it has
    only to say that it starts and stops (torch 2.13), and that a build for CUDA found no GPU."""
    if _KINETO_LEVEL in environ:
        yield
        return
    environ[_KINETO_LEVEL] = _SILENT
    try:
        yield
    finally:
        del environ[_KINETO_LEVEL]


def _write(profiled: Any, path: Path, most_bytes: int) -> tuple[int | None, str]:
    """Store the trace, compressed and private to its owner, if it is not too large."""
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
                f"Its trace of {words.size(size)} exceeds the limit of {words.size(most_bytes)} and was "
                "discarded; profile fewer steps."
            )
        os.replace(partial, path)
        return size, ""
    except OSError as error:
        raise StepscopeError(f"The trace could not be written: {error.strerror or error}.") from None
    finally:
        plain.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)

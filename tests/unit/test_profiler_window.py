"""A window under PyTorch's profiler: its start, its file, and its silence."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity

from harness.profiling import window as window_module
from harness.profiling.options import ProfileOptions
from harness.profiling.window import ProfilerWindow
from harness.records.run import DeviceKind
from tests.warm_start import run_python


def test_a_profiler_that_does_not_start_is_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To stop one that was never prepared ends the process, with CUDA."""
    window = ProfilerWindow(ProfileOptions(1), tmp_path / "t.json.gz", DeviceKind.CPU)

    def fail() -> None:
        raise UserWarning("not now")

    monkeypatch.setattr(window._profile, "start", fail)
    monkeypatch.setattr(window._profile, "stop", lambda: pytest.fail("it was stopped"))
    with pytest.raises(UserWarning):
        window.start()
    window.stop()


def test_a_trace_that_is_too_large_is_left_out_and_said(tmp_path: Path) -> None:
    window = ProfilerWindow(ProfileOptions(1), tmp_path / "profile-1.json.gz", DeviceKind.CPU, most_bytes=10)
    window.start()
    for _ in range(2):
        torch.ones(8, 8) @ torch.ones(8, 8)
        window.end_step()
    window.stop()
    assert window.result is not None
    assert window.result.file_bytes is None
    assert "discarded" in window.result.cut
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "library"), [(DeviceKind.CUDA, torch.cuda), (DeviceKind.XPU, torch.xpu)])
def test_the_profiler_waits_for_the_device_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: DeviceKind, library: Any
) -> None:
    """Torch's profiler synchronizes the current device of the thread when it stops."""
    current, waits = [0], []

    @contextmanager
    def on(ordinal: int) -> Iterator[None]:
        current.append(ordinal)
        yield
        current.pop()

    monkeypatch.setattr(window_module, "supported_activities", lambda: {ProfilerActivity.XPU})
    monkeypatch.setattr(library, "device", on)
    for is_whole in (True, False):
        window = ProfilerWindow(ProfileOptions(1), tmp_path / "t.json.gz", kind, ordinal=1)
        for name in ("start", "step", "stop"):
            monkeypatch.setattr(window._profile, name, lambda: waits.append(current[-1]))
        window.start()
        if is_whole:
            window.end_step()
        window.stop()
    assert (waits, current) == ([1] * 5, [0])


def test_the_profiler_selects_no_device_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in (torch.cuda, torch.xpu):
        monkeypatch.setattr(library, "device", lambda _ordinal: pytest.fail("a device was selected"))
    for kind in (DeviceKind.CPU, DeviceKind.MPS):
        window = ProfilerWindow(ProfileOptions(1), tmp_path / "t.json.gz", kind, ordinal=0)
        window.start()
        window.end_step()
        window.stop()


_WINDOW = """
import os
import sys
from pathlib import Path

import torch

from harness.profiling.options import ProfileOptions
from harness.profiling.window import WARM_UP_STEPS, ProfilerWindow
from harness.records.run import DeviceKind

window = ProfilerWindow(ProfileOptions(steps=1), Path(sys.argv[1]) / "trace.json.gz", DeviceKind.CPU)
window.start()
for _ in range(WARM_UP_STEPS + 1):
    torch.ones(2).sum()
    window.end_step()
window.stop()
print(window.result is not None, "KINETO_LOG_LEVEL" in os.environ)
"""


@pytest.mark.slow
def test_a_profile_prints_nothing_into_the_output_of_a_script(tmp_path: Path) -> None:
    done = run_python("-c", _WINDOW, str(tmp_path))
    assert (done.stdout, done.stderr) == ("True False\n", "")

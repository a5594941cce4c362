"""A window under PyTorch's profiler: its start, its file, and its silence."""

from pathlib import Path

import pytest
import torch

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

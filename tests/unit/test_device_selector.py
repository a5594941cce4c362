"""Test which devices cannot be there, before torch is imported."""

import os
from pathlib import Path

import pytest

from harness.cli import main
from harness.device import selector
from harness.device.first_gpu import gpu_memory_bytes
from harness.device.selector import Platform, kind_of, refuse_absent
from harness.device.testing.nvml import FakeGpu, FakeNvml
from harness.errors import AbsentDeviceError
from harness.records.run import DeviceKind
from harness.store.home import Home

_ON_CPU = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\nxpu = None\n"
_ON_CUDA = "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\nxpu: Optional[str] = None\n"
_ON_ROCM = "cuda: Optional[str] = None\nhip: Optional[str] = '7.1'\nxpu: Optional[str] = None\n"


def linux(dev: Path, versions: str | None, *nodes: str) -> Platform:
    for node in nodes:
        (dev / node).touch()
    return Platform("linux", dev, versions)


@pytest.mark.parametrize("word", ["cuda", "cuda:0", "CUDA:1", "GPU-1f2e", "mig-0a"])
def test_a_torch_without_cuda_has_no_cuda_device(word: str, tmp_path: Path) -> None:
    with pytest.raises(
        AbsentDeviceError, match=f"{word} does not exist: the installed torch is built without"
    ):
        refuse_absent(word, linux(tmp_path, _ON_CPU, "nvidiactl"))


def test_a_machine_without_a_driver_has_no_cuda_device(tmp_path: Path) -> None:
    with pytest.raises(AbsentDeviceError, match="no GPU driver is loaded"):
        refuse_absent("cuda:0", linux(tmp_path, _ON_CUDA))


@pytest.mark.parametrize(
    ("versions", "node"), [(_ON_CUDA, "nvidiactl"), (_ON_CUDA, "dxg"), (_ON_ROCM, "kfd"), (None, "nvidia0")]
)
def test_a_device_that_may_be_there_is_left_to_torch(versions: str | None, node: str, tmp_path: Path) -> None:
    refuse_absent("cuda:7", linux(tmp_path, versions, node))


def test_other_kinds_are_judged_by_platform_and_torch(tmp_path: Path) -> None:
    with pytest.raises(AbsentDeviceError, match="built without XPU"):
        refuse_absent("xpu", linux(tmp_path, _ON_CUDA))
    with pytest.raises(AbsentDeviceError, match="only on macOS"):
        refuse_absent("mps", linux(tmp_path, _ON_CUDA))
    refuse_absent("mps", Platform("darwin", tmp_path, None))


@pytest.mark.parametrize("word", ["cpu", "auto", " CPU "])
def test_cpu_and_auto_name_no_gpu(word: str, tmp_path: Path) -> None:
    assert kind_of(word) is None
    refuse_absent(word, linux(tmp_path, _ON_CPU))
    assert kind_of("gpu-12") is DeviceKind.CUDA


def test_what_torch_is_built_with_is_read_without_importing_it() -> None:
    versions = Platform.current().torch_versions
    assert versions is not None
    assert "cuda" in versions


def test_a_run_on_an_absent_device_is_refused_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    platform = linux(tmp_path, _ON_CPU)
    monkeypatch.setattr(selector.Platform, "current", lambda: platform)
    assert main(["run", "mlp", "--device", "cuda:0"]) == 2
    message = capsys.readouterr()
    assert message.out == ""
    assert "cuda:0 does not exist: the installed torch is built without CUDA; choose cpu" in message.err
    assert message.err.count("\n") == 1
    assert Home.locate(None, os.environ).runs() == []


@pytest.mark.parametrize(
    ("word", "environ", "versions", "has_memory"),
    [
        ("auto", {}, _ON_CUDA, True),
        ("cuda:0", {}, _ON_CUDA, True),
        ("cpu", {}, _ON_CUDA, False),
        ("mps", {}, _ON_CUDA, False),
        ("auto", {}, _ON_CPU, False),
        ("auto", {"CUDA_VISIBLE_DEVICES": ""}, _ON_CUDA, False),
    ],
)
def test_the_gpu_of_a_run_is_the_smallest_that_it_may_use(
    word: str, environ: dict[str, str], versions: str, has_memory: bool, tmp_path: Path
) -> None:
    library = FakeNvml([FakeGpu("GPU-0", total=80 << 30), FakeGpu("GPU-1", total=24 << 30)])
    size_bytes = gpu_memory_bytes(word, environ, linux(tmp_path, versions, "nvidiactl"), library)
    assert size_bytes == (24 << 30 if has_memory else None)


def test_a_driver_that_does_not_respond_has_no_gpu(tmp_path: Path) -> None:
    library = FakeNvml([])
    library.fail("nvmlInit", "LibraryNotFound")
    assert gpu_memory_bytes("auto", {}, linux(tmp_path, _ON_CUDA, "nvidiactl"), library) is None

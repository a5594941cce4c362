import os
import sysconfig
from pathlib import Path

import psutil
import pytest

from harness.device.cpu.facts import (
    compile_obstacle,
    cpu_facts,
    cpu_name,
)
from harness.device.cuda import facts as cuda_facts
from harness.device.cuda.device import reading_of
from harness.device.cuda.facts import device_uuid, probe_cuda
from harness.records.run import MemoryReading

GIB = 1 << 30


def test_the_cpu_may_use_no_more_than_ram() -> None:
    facts = cpu_facts(None)
    assert facts.memory_bytes is not None
    assert facts.memory_bytes <= psutil.virtual_memory().total


def test_the_processors_name_is_read_or_its_kind_told(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: AMD  EPYC 9654\n")
    assert cpu_name(cpuinfo) == "AMD EPYC 9654"
    assert cpu_name(tmp_path / "missing") != ""


def test_without_compiler_the_cpu_cannot_compile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert (
        compile_obstacle() == "torch.compile needs a C++ compiler, and there is none; install g++ or clang++."
    )
    assert not cpu_facts(None).can_compile


def test_without_python_headers_the_cpu_cannot_compile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "g++"
    compiler.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path / "include")})
    obstacle = compile_obstacle()
    assert obstacle is not None
    assert "python3-dev" in obstacle


@pytest.mark.parametrize(
    ("text", "name", "uuid"),
    [
        ("1b2c", "NVIDIA H200", "GPU-1b2c"),
        ("1b2c", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG-1b2c"),
        ("GPU-1b2c", "NVIDIA H200", "GPU-1b2c"),
        ("", "NVIDIA H200", None),
    ],
)
def test_a_uuid_is_written_as_nvml_writes_it(text: str, name: str, uuid: str | None) -> None:
    assert device_uuid(text, name) == uuid


def test_an_old_gpu_cannot_compile() -> None:
    obstacle = cuda_facts.compile_obstacle((6, 1))
    assert obstacle == "torch.compile needs compute capability 7.0, this GPU has 6.1."


def test_a_torch_without_cuda_says_so() -> None:
    sight = probe_cuda()
    assert (sight.devices > 0) == (sight.reason == "")


def stat(current: int, peak: int) -> dict[str, dict[str, int]]:
    return {"all": {"current": current, "peak": peak, "allocated": 0, "freed": 0}}


def test_the_allocators_statistics_become_a_reading() -> None:
    stats = {
        "allocated_bytes": stat(10, 20),
        "reserved_bytes": stat(30, 40),
        "active_bytes": stat(12, 22),
        "inactive_split_bytes": stat(5, 6),
        "num_alloc_retries": 1,
        "num_ooms": 2,
    }
    assert reading_of(stats) == MemoryReading(10, 30, 12, 20, 40, 5, 1, 2)


def test_before_cuda_is_started_nothing_is_known() -> None:
    assert set(reading_of({})) == {None}

"""Errors of the host's shared memory: recognized, with a verdict of their own, and what helps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import OomPhase, OomVerdict, report_from_json
from harness.device.host.shared_memory import read_shared_memory
from harness.records.run import DeviceKind
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.watch.oom.errors import is_out_of_memory
from tests.oom_factories import MIB, some_facts

FULL = (
    # torch 2.13 on a full tmpfs. The code is a stale errno: these three are from public files.
    "unable to allocate shared memory(shm) for file </torch_31290_41478427_20>: No space left on device (28)",
    "unable to allocate shared memory(shm) for file </torch_1140157_3143461634_13983>: Success (0)",
    "unable to allocate shared memory(shm) for file </torch_11>: Resource temporarily unavailable (11)",
    "unable to allocate shared memory(shm) for file </torch_4411_2_1>: Cannot allocate memory (12)",
    # idiap/ESLAM#20, MIC-DKFZ/nnUNet#294 (torch 1).
    "unable to write to file </torch_31911_952036340_6686>: No space left on device (28)",
    "unable to write to file </torch_15769_1517813162>",
    "unable to open shared memory object </torch_4_1_5> in read-write mode: No space left on device (28)",
    # vllm-project/vllm#11054 and others.
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed\nError while "
    "creating shared memory segment /dev/shm/nccl-cjY8 (size 10617216), error: No space left on device (28)",
)
BUS_ERROR = (
    "DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that dataloader's workers "
    "are out of shared memory. Please try to raise your shared memory limit."
)
# NCCL 2.21.5, vllm-project/vllm#14537: without a code.
NO_CODE = "Last error:\nError while creating shared memory segment /dev/shm/nccl-EoOvZr (size 7340384)"
# A worker passes on a batch that /dev/shm has no space for.
SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.randn(3, 64, 64) if index < 32 else torch.randn(3, 1024, 1024)


net = nn.Conv2d(3, 4, 3)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for images in DataLoader(Images(), batch_size=4, num_workers=1):
    optimizer.zero_grad()
    net(images).pow(2).mean().backward()
    optimizer.step()
"""
PRIVATE_MOUNT = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"',
    "sh",
)


def can_mount() -> bool:
    try:
        return subprocess.run([*PRIVATE_MOUNT, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.parametrize("text", [*FULL, BUS_ERROR, NO_CODE])
@pytest.mark.parametrize("device", [DeviceKind.CPU, DeviceKind.CUDA])
def test_a_full_shared_memory_is_the_verdict_on_every_device(text: str, device: DeviceKind) -> None:
    assert is_out_of_memory(RuntimeError(text))
    facts = some_facts(device, error=text, phase=OomPhase.WORKER)
    memory = facts.memory._replace(shared_free_bytes=MIB, shared_total_bytes=64 * MIB)
    report = explain(facts._replace(memory=memory))
    assert report.verdict is OomVerdict.SHARED_MEMORY
    assert "of its 64.0 MiB, 1.00 MiB were free when it was read after the error" in report.why
    assert "--shm-size" in report.why
    assert ("most likely" in report.why) == (text in (BUS_ERROR, NO_CODE))


def test_an_unknown_size_of_shared_memory_is_called_that() -> None:
    assert "its size is not known" in explain(some_facts(DeviceKind.CPU, error=FULL[0])).why


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm on this system")
def test_the_size_of_shared_memory_is_read() -> None:
    shared = read_shared_memory()
    assert shared.free_bytes is not None
    assert shared.total_bytes is not None
    assert 0 <= shared.free_bytes <= shared.total_bytes


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="only root can mount another /dev/shm")
def test_a_worker_without_space_in_shared_memory_ends_with_this_verdict_for_real(tmp_path: Path) -> None:
    script, home = tmp_path / "images.py", tmp_path / "home"
    script.write_text(SCRIPT)
    environ = os.environ | {"STEPSCOPE_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [*PRIVATE_MOUNT, sys.executable, "-m", "harness", "run", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    [folder] = Home(home).runs()
    with LogReader(folder.log) as log:
        [row] = log.memory.oom_reports()
    report = report_from_json(row.report)
    assert report.verdict is OomVerdict.SHARED_MEMORY
    assert report.facts.request.phase is OomPhase.WORKER
    assert report.facts.memory.shared_total_bytes == 16 * MIB
    # What the error says is not cut off by the worker's traceback.
    assert "unable to allocate shared memory(shm)" in report.facts.error

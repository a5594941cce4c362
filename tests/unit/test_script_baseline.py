"""The baseline of a script's memory on the CPU."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from harness.attach.baseline import ScriptBaseline
from harness.attach.guard import ScriptGuard
from harness.device.cpu.device import CpuDevice
from tests.api_factories import log_of

_MIB = 1 << 20
_SCRIPT = """
import torch
import stepscope

model = torch.nn.Linear(1024, 4096, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = stepscope.watch(model, optimizer)
for _ in range(20):
    model(torch.ones(8, 1024)).square().mean().backward()
    optimizer.step()
"""
_WEIGHTS_MIB = 16


def allocated_bytes(device: CpuDevice) -> int:
    allocated = device.read_memory().allocated_bytes
    assert allocated is not None
    return allocated


def test_tensors_that_exist_already_are_the_trainings(tmp_path: Path) -> None:
    # The tests before this one may have left garbage: what is freed of it would be below the baseline.
    earlier = torch.ones(4 * _MIB // 4)
    device = CpuDevice.open()
    ScriptBaseline(device, ScriptGuard()).close()
    before = allocated_bytes(device)
    assert before > earlier.nbytes // 2
    weight = torch.ones(8 * _MIB // 4)
    views = weight[::2], weight.view(2, -1)
    on_disk = torch.UntypedStorage._new_shared(8 * _MIB)
    shared = torch.empty(0, dtype=torch.uint8).set_(on_disk)
    mapped = torch.from_file(str(tmp_path / "weights"), shared=True, size=8 * _MIB, dtype=torch.uint8)
    torch.save(mapped, tmp_path / "checkpoint")
    loaded = torch.load(tmp_path / "checkpoint", mmap=True)
    array = bytearray(8 * _MIB)
    ScriptBaseline(device, ScriptGuard()).close()
    assert len(views) == 2
    assert len(array) == shared.numel() == mapped.numel() == loaded.numel() == 8 * _MIB
    assert allocated_bytes(device) - before == pytest.approx(8 * _MIB, abs=_MIB)


def test_what_is_allocated_while_the_watch_opens_is_not_the_trainings() -> None:
    device = CpuDevice.open()
    baseline = ScriptBaseline(device, ScriptGuard())
    data = bytearray(4 * _MIB)
    baseline.training_begins()
    before = allocated_bytes(device)
    assert before == pytest.approx(len(data), abs=_MIB)
    own = bytearray(16 * _MIB)
    baseline.training_has_begun()
    assert allocated_bytes(device) == pytest.approx(before, abs=_MIB)
    weight = bytearray(8 * _MIB)
    assert allocated_bytes(device) - before == pytest.approx(len(weight), abs=_MIB)
    assert len(own) == 16 * _MIB


def test_the_memory_of_the_log_is_left_out_once() -> None:
    device = CpuDevice.open()
    baseline = ScriptBaseline(device, ScriptGuard(), has_tensors=False)
    weight = bytearray(4 * _MIB)
    baseline.training_begins()
    with closing(sqlite3.connect(":memory:")) as log:
        log.execute("CREATE TABLE row (value)")
        log.execute("INSERT INTO row VALUES (zeroblob(16 << 20))")
        baseline.training_has_begun()
        assert allocated_bytes(device) == pytest.approx(len(weight), abs=_MIB)
    assert allocated_bytes(device) == pytest.approx(len(weight), abs=_MIB)


@pytest.mark.long
@pytest.mark.parametrize("command", [["-m", "harness", "run"], []])
def test_a_script_has_its_tensors_allocated_and_not_what_it_imports(
    tmp_path: Path, command: list[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    environ = {**os.environ, "STEPSCOPE_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *command, str(script)], env=environ, check=True, timeout=120)
    with log_of(tmp_path / "home") as log:
        allocated = [row.allocated_bytes for row in log.steps(1, 20) if row.allocated_bytes is not None]
    # The weight and its gradient.
    assert 2 * _WEIGHTS_MIB <= allocated[-1] / _MIB <= 2 * _WEIGHTS_MIB + 5

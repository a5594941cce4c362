"""A whole training process on a fake Intel or Apple GPU, from its folder to its last word."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.records import DeviceKind, EventKind, RunState
from harness.selection import resolve
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.summary import read_device

MIB = 1 << 20
PROGRAM = """
import sys
from pathlib import Path

import harness.run
from harness.device.fake_accelerators import FakeMpsDevice, FakeXpuDevice
from harness.store.folder import RunFolder

def play(allocator, step):
    allocator.allocate(100 << 20)
    allocator.free(100 << 20)

harness.run.open_device = lambda _: {"xpu": FakeXpuDevice, "mps": FakeMpsDevice}[sys.argv[1]](script=play)
sys.exit(harness.run.execute(RunFolder(Path(sys.argv[2]))))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DeviceKind.XPU, DeviceKind.MPS])
def test_a_run_is_built_trained_recorded_and_ended(tmp_path: Path, kind: DeviceKind) -> None:
    settings = resolve({"model": "mlp", "max_steps": 40, "device": kind.value, "memory_cap_gib": 1.0})
    folder = Home(tmp_path).create("one", settings, 1)
    command = [sys.executable, "-c", PROGRAM, kind.value, str(folder.path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    with LogReader(folder.log) as log:
        run, rows, events = log.run(), log.steps(1, 40), [event for _, event in log.events()]
        sample = log.memory.latest_sample()
        devices = set(log.devices())
    facts = read_device(run.device)
    assert facts is not None
    assert (run.state, facts.kind) == (RunState.FINISHED, kind)
    assert len(rows) == 40
    assert all(row.loss is not None and row.reserved_bytes is not None for row in rows)
    assert any(row.device_step_ns is not None for row in rows)
    assert [event.message for event in events if event.kind == EventKind.WARNING] == []
    assert devices >= {"cpu"}
    assert sample is None or sample.reserved_bytes is not None

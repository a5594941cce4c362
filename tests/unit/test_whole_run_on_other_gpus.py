"""A whole training process on a fake Intel or Apple GPU, from its folder to its last word."""

import sys
from pathlib import Path

import pytest

import harness.run
from harness.device.testing.accelerators import FakeMpsDevice, FakeXpuDevice
from harness.device.testing.device import FakeAllocator
from harness.records.run import DeviceKind, EventKind, RunState
from harness.settings.resolve import resolve
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor.stored_json import read_device
from tests.supervision import PATIENCE_S
from tests.warm_start import prepare_forks

MIB = 1 << 20


def _play(allocator: FakeAllocator, _step: int) -> None:
    allocator.allocate(100 << 20)
    allocator.free(100 << 20)


def _train(kind: DeviceKind, folder: Path) -> None:
    """In a forked process: train on the fake device."""
    device = (FakeXpuDevice if kind is DeviceKind.XPU else FakeMpsDevice)(script=_play)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.run, "open_device", lambda _: device)
        sys.exit(harness.run.execute(RunFolder(folder)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(DeviceKind.XPU, marks=pytest.mark.long), DeviceKind.MPS])
def test_a_run_is_built_trained_recorded_and_ended(tmp_path: Path, kind: DeviceKind) -> None:
    settings = resolve({"model": "mlp", "max_steps": 40, "device": kind.value, "memory_cap_gib": 1.0})
    folder = Home(tmp_path).create("one", settings, 1)
    process = prepare_forks().Process(target=_train, args=(kind, folder.path))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == 0
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

"""Snapshots of a training process for real: asked for through its control file, read from its log."""

import json
import re
from pathlib import Path

import pytest

from harness.records.memory import MemoryCategory, SnapshotReason
from harness.records.run import CommandKind, CommandState, EventKind, StepFlag
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.tracking.snapshot_file import summarize
from tests.e2e.test_run_process import a_child

pytestmark = pytest.mark.slow

MIB = 1 << 20


def test_a_snapshot_of_a_run_names_weights_lines_and_modules(tmp_path: Path) -> None:
    with a_child(Home(tmp_path), model="cnn", batch_size=16) as child:
        child.until_step(8)
        answer = child.request(CommandKind.SNAPSHOT, '{"steps": 3}')
        assert answer.state == CommandState.APPLIED, answer.message
        with LogReader(child.folder.log) as log:
            row = log.memory.snapshots()[-1]
            sites = log.memory.allocations(row.snapshot_id)
            modules = log.memory.modules(row.snapshot_id)
            flagged = [s.step for s in log.last_steps(1_000_000) if s.flags & StepFlag.TRACKED]
            parameters = log.run().model_parameters
            reasons = [result.reason for result in log.memory.snapshots()]
            assert log.memory.latest_sample() is not None
        assert child.events(EventKind.SNAPSHOT)
    assert SnapshotReason.START in reasons
    assert parameters is not None
    assert (row.tracked_steps, len(flagged)) == (3, 3)
    assert sum(s.held_bytes for s in sites if s.category == MemoryCategory.WEIGHTS) == 4 * parameters
    assert sum(m.parameter_bytes for m in modules) == 4 * parameters
    assert any(m.activation_bytes for m in modules)
    lines = [re.match(r"(harness/.+\.py):(\d+) \w+$", s.site) for s in sites if s.stack and s.module]
    assert lines
    for line in filter(None, lines):
        assert len(Path(line[1]).read_text(encoding="utf-8").splitlines()) >= int(line[2])
    assert row.file is not None
    text, _ = summarize(child.folder.captures / row.file)
    assert text.events > 0
    assert str(Path.home()).encode() not in (child.folder.captures / row.file).read_bytes()


@pytest.mark.long
def test_the_line_that_leaks_grows_fastest(tmp_path: Path) -> None:
    with a_child(Home(tmp_path), is_fresh=True, batch_size=8, inject="leak:list:1MiB") as child:
        child.until_step(8)
        answer = child.request(CommandKind.SNAPSHOT, json.dumps({"steps": 8}))
        assert answer.state == CommandState.APPLIED, answer.message
        with LogReader(child.folder.log) as log:
            row = log.memory.snapshots()[-1]
            sites = log.memory.allocations(row.snapshot_id)
    worst = max(sites, key=lambda site: site.grown_bytes or 0)
    assert worst.site.startswith("harness/train/inject.py:")
    assert (worst.grown_blocks, worst.grown_bytes) == (6, 6 * MIB)
    assert "6 steps retained 6.00 MiB in 6 blocks allocated at harness/train/inject.py" in answer.message

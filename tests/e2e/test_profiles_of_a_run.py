"""A profile of a training process for real: asked for through its control file, read from its log."""

from pathlib import Path

import pytest

from harness.analysis.profiles import by_kind
from harness.profiling.rows import NO_LINES
from harness.records.profile import OperatorKind
from harness.records.run import CommandKind, CommandState, EventKind, StepFlag
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.e2e.test_run_process import a_child

pytestmark = pytest.mark.slow


def test_a_profile_of_a_run_tells_its_work_and_keeps_its_trace(tmp_path: Path) -> None:
    with a_child(Home(tmp_path), model="cnn", batch_size=16) as child:
        child.until_step(8)
        answer = child.request(CommandKind.PROFILE, '{"steps": 2, "stacks": true}')
        assert answer.state == CommandState.APPLIED, answer.message
        (event,) = child.events(EventKind.PROFILE)
        with LogReader(child.folder.log) as log:
            flagged = [s.step for s in log.last_steps(1_000_000) if s.flags & StepFlag.PROFILED]
            (row,) = log.profiles.all()
            operators, modules = log.profiles.operators(1), log.profiles.modules(1)
            stacks = log.profiles.stacks(1)
        assert row.message in event.message
        assert (child.folder.captures / (row.file or "")).stat().st_size == row.file_bytes
    assert flagged == [row.first_step - 1, row.first_step, row.first_step + 1]
    parts = by_kind(operators, row)
    assert {OperatorKind.CONVOLUTION, OperatorKind.OPTIMIZER, OperatorKind.IDLE} <= {
        part.name for part in parts
    }
    assert sum(part.time_ns for part in parts) == pytest.approx(row.wall_ns)
    assert sum(one.self_cpu_ns for one in modules) == sum(one.self_cpu_ns for one in operators)
    if NO_LINES not in row.left_out:
        assert any("harness/models/cnn.py" in one.stack and "aten::" in one.stack for one in stacks)
    assert not any(str(tmp_path) in one.stack or "/harness" in one.stack.split()[0] for one in stacks)

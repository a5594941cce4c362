"""A profile of a training process for real: asked for through its control file, read from its log."""

import json
from pathlib import Path

import pytest

from harness.records import CommandKind, CommandState, EventKind, StepFlag
from harness.store.home import Home
from harness.store.reader import LogReader
from tests.e2e.test_run_process import a_child

pytestmark = pytest.mark.slow


def test_a_profile_of_a_run_tells_its_work_and_keeps_its_trace(tmp_path: Path) -> None:
    with a_child(Home(tmp_path), model="cnn", batch_size=16) as child:
        child.until_step(8)
        answer = child.ask(CommandKind.PROFILE, '{"steps": 2}')
        assert answer.state == CommandState.APPLIED, answer.message
        with LogReader(child.folder.log) as log:
            flagged = [s.step for s in log.last_steps(1_000_000) if s.flags & StepFlag.PROFILED]
        (event,) = child.events(EventKind.PROFILE)
        detail = json.loads(event.detail)
        assert (child.folder.captures / detail["file"]).stat().st_size > 0
    assert len(flagged) == 3
    assert "convolution" in [one["kind"] for one in detail["kinds"]]

"""Runs that end in a block of unobserved steps, or right after one."""

from pathlib import Path

import pytest
import torch
from torch import nn

from harness.analysis.timing.overhead import BlockPlan
from harness.records.run import EventKind
from harness.supervisor.logs import read_log
from harness.watch import instruments
from tests.attach_factories import attached, recorded

_PLAN = BlockPlan(steps=4, discarded=1, by_block=False)


@pytest.mark.parametrize("steps", [_PLAN.apart + 1, _PLAN.apart + 3], ids=["within a block", "after a block"])
def test_unobserved_steps_at_the_end_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    monkeypatch.setattr(instruments, "SYNCHRONOUS", _PLAN)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attached(tmp_path) as (session, folder, guard):
        for _ in range(steps):
            model(torch.randn(5, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        session.end(None)
        assert guard.message is None
    log = recorded(folder)
    assert log.steps[-1].step < steps
    end = [event for event in log.events if event.kind == EventKind.STATE][-1]
    assert (end.step, end.message) == (steps, f"The script ended after {steps:,} steps.")
    assert read_log(folder.log).steps == steps

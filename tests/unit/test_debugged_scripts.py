"""A script that a person debugs."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

from harness.records.run import EventKind, RunState
from tests.attach_factories import ran_watched, recorded

QUITS = """
import io, pdb
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    if step == 4:
        pdb.Pdb(stdin=io.StringIO("q\\n"), stdout=io.StringIO()).set_trace()
    model(torch.ones(1, 2)).mean().backward()
    optimizer.step()
"""


FAILS = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).mean().backward()
optimizer.step()
raise LookupError("no such key")
"""


def test_another_module_with_the_name_of_the_debugger_hides_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bdb", ModuleType("bdb"))  # A file beside the script.
    script = tmp_path / "train.py"
    script.write_text(FAILS)
    done, folder = ran_watched(tmp_path / "home", script)
    assert type(done.error) is LookupError
    log = recorded(folder)
    assert (log.run.state, log.run.state_message) == (RunState.FAILED, "LookupError: no such key")


def test_quitting_the_debugger_is_a_stop(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(QUITS)
    done, folder = ran_watched(tmp_path / "home", script)
    assert type(done.error).__name__ == "BdbQuit"
    log = recorded(folder)
    assert (log.run.state, log.run.state_message) == (RunState.STOPPED, "Stopped by quitting the debugger.")
    assert len(log.steps) == 4
    assert EventKind.ERROR not in {event.kind for event in log.events}

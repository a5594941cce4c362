"""The end of processes: what is freed, and what is not looked for."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.ending import skip_last_collection

_SCRIPT = """
import torch

class Resource:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("freed")

resource = Resource()
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
"""


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    yield
    gc.unfreeze()
    if was_frozen:
        gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_garbage_is_looked_for_only_where_triton_would_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton._C.libtriton", raising=False)
    skip_last_collection()
    assert gc.get_freeze_count() > 0
    monkeypatch.setitem(sys.modules, "triton._C.libtriton", ModuleType("triton._C.libtriton"))
    skip_last_collection()
    assert gc.get_freeze_count() == 0


@pytest.mark.long
def test_a_script_that_closes_all_files_of_its_process_keeps_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{_SCRIPT}\nimport os\nos.closerange(3, 200)\nprint('closed')\n")
    environ = os.environ | {"STEPSCOPE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "harness", "run", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "closed\nfreed\n"
    assert "stepscope: The files of this run could not be closed: Bad file descriptor.\n" in done.stderr


@pytest.mark.long
def test_what_a_script_does_when_its_objects_are_freed_is_done_under_watch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    environ = os.environ | {"STEPSCOPE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "harness", "run", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "freed\n"

"""Scripts that end with a full memory before a training could be watched: what they print is their own, and
their outcome is recorded."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from harness.attach.guard import EndingGuard
from harness.attach.launch import Script, origin_of
from harness.records.run import RunState
from harness.store.appender import LogAppender
from harness.store.home import Home
from harness.supervisor.inspection import inspect_run
from harness.supervisor.logs import LogCache
from harness.watch.jobs.sampler import Sampler
from tests.attach_factories import attached, recorded
from tests.store_factories import a_run

# Fills all memory under a limit of its own with blocks of one size, which a global keeps.
FULL = """
import resource
import sys

import numpy as np
import torch

size = int(sys.argv[1])
with open("/proc/self/status") as status:
    data_bytes = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (data_bytes + (24 << 20), resource.RLIM_INFINITY))
blocks = []
while True:
    blocks.append(np.ones(size, np.uint8) if size else bytes(64))
"""


def outcome_of(home: Path) -> tuple[RunState, str]:
    [folder] = Home(home).runs()
    return inspect_run(folder, LogCache(), time.time()).status[:2]


def printed(text: str) -> list[str]:
    """Return the script's own lines, without the marks below a line: Python needs memory to place them.
    Without a watch, which frees its reserve, it may also have no memory for a line of the source."""
    lines = text.splitlines()
    return [line for line in lines if not line.startswith("stepscope: ") and line.strip(" ^")]


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA covers mappings on Linux only")
@pytest.mark.parametrize("size", [4_000_000, 10_000, 0])
def test_a_script_that_fills_its_memory_prints_its_own_error_and_ends_as_without_a_watch(
    tmp_path: Path, size: int
) -> None:
    script, home = tmp_path / "full.py", tmp_path / "home"
    script.write_text(FULL)
    environ = os.environ | {"STEPSCOPE_HOME": str(home), "OMP_NUM_THREADS": "1"}
    bare, watched = (
        subprocess.run(
            [sys.executable, *prefix, str(script), str(size)],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
        )
        for prefix in ((), ("-m", "harness", "run"))
    )
    lines = iter(printed(watched.stderr))
    assert all(line in lines for line in printed(bare.stderr))  # In this order.
    assert watched.returncode == bare.returncode == 1
    state, message = outcome_of(home)
    assert state is RunState.OUT_OF_MEMORY
    assert "before the first step" in message


def test_a_watch_that_cannot_be_opened_leaves_the_script_alone_and_is_not_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_sampler: Sampler) -> Sampler:
        raise RuntimeError("can't start new thread")

    with attached(tmp_path) as (_, folder, _):
        monkeypatch.setattr(Sampler, "__enter__", refuse)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            model(torch.ones(2, 4)).mean().backward()
            optimizer.step()
    log = recorded(folder)
    assert log.run.state == RunState.FINISHED
    assert "This training is not watched: memory or threads are lacking." in log.run.state_message
    assert not [event for event in log.events if "new thread" in event.message]
    text = capsys.readouterr().err
    assert "The script goes on without Stepscope." in text
    assert "Traceback" not in text


def test_the_end_of_a_script_raises_no_memory_error(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise MemoryError

    guard = EndingGuard()
    guard.run(fail)
    assert not guard.is_on
    assert guard.message is not None
    assert guard.message in capsys.readouterr().err


def test_a_log_that_was_begun_is_continued_only_on_request(tmp_path: Path) -> None:
    folder = Home(tmp_path).create_for_script(None, origin_of(Script("train.py", (), is_module=False)), 0)
    run = a_run(folder.run_id, "train-1")
    LogAppender(folder.log, run).close()
    LogAppender(folder.log, run._replace(name="other"), may_exist=True).close()
    assert recorded(folder).run.name == "train-1"

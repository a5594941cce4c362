"""A person's script under watch, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.records.run import RunState
from harness.store.home import Home
from harness.store.reader import LogReader

SCRIPTS = Path(__file__).parents[1] / "scripts"


def run_bare(script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def run_watched(home: Path, script: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "harness", "run", "--home", str(home), str(SCRIPTS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ.copy())


@pytest.mark.slow
def test_a_script_trains_as_without_stepscope_and_its_steps_are_in_the_log(tmp_path: Path) -> None:
    bare, watched = run_bare("image_classifier.py"), run_watched(tmp_path, "image_classifier.py")
    assert (watched.returncode, watched.stdout) == (bare.returncode, bare.stdout), watched.stderr
    (folder,) = Home(tmp_path).runs()
    with LogReader(folder.log) as reader:
        run = reader.run()
        assert run.state == RunState.FINISHED
        assert [row.step for row in reader.last_steps(100)] == list(range(1, 2 * 13 + 1))

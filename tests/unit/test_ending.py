"""The end of processes: what is freed, and what is not looked for."""

import fcntl
import gc
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness.attach.descriptors import keeping_files_open
from harness.ending import skip_last_collection
from harness.store.home import Home
from harness.store.reader import LogReader

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
def test_a_script_that_closes_all_files_of_its_process_is_followed_to_its_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    rest = "import os\nos.closerange(3, 200)\nweight.sum().backward()\noptimizer.step()\nprint('closed')\n"
    script.write_text(f"{_SCRIPT}\n{rest}")
    environ = os.environ | {"STEPSCOPE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "harness", "run", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "closed\nfreed\n"
    assert "closed" not in done.stderr
    (folder,) = Home(tmp_path / "home").runs()
    with LogReader(folder.log) as reader:
        assert reader.run().state_message == "The script ended after 2 steps."


def test_a_script_that_closes_a_range_of_files_closes_those_that_are_no_files_of_its_run(
    tmp_path: Path,
) -> None:
    run, other = tmp_path / "run", tmp_path / "other"
    for folder in (run, other):
        folder.mkdir()
        (folder / "log").touch()

    def open_copy(path: Path) -> int:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 700)
        finally:
            os.close(descriptor)

    before = os.closerange
    with keeping_files_open(lambda: run):
        paths = (other / "log", run / "log", other / "log", run, Path(f"/proc/{os.getpid()}/statm"), other)
        numbers = [open_copy(path) for path in paths]
        os.closerange(numbers[0], numbers[-1] + 1)
        assert [_is_open(number) for number in numbers] == [False, True, False, True, True, False]
    assert os.closerange is before
    os.closerange(numbers[0], numbers[-1] + 1)
    assert not any(_is_open(number) for number in numbers)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@pytest.mark.long
def test_what_a_script_does_when_its_objects_are_freed_is_done_under_watch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    environ = os.environ | {"STEPSCOPE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "harness", "run", str(script)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "freed\n"


def test_a_script_closes_its_files_where_none_is_left_to_list_them_with(tmp_path: Path) -> None:
    own = os.open(tmp_path, os.O_RDONLY)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with keeping_files_open(lambda: None):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            os.closerange(own, own + 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(own)

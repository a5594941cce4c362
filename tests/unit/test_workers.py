"""`pytest --workers`: tests run in forked processes, and are reported as if they ran in one."""

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.scheduling import FilesLeft
from tests.supervision import PATIENCE_S, until

ROOT = Path(__file__).parents[2]
# Each has runs of pytest of its own.
pytestmark = pytest.mark.slow

_CONFTEST = """
from tests.workers import Workers

def pytest_configure(config):
    config.pluginmanager.register(Workers(config, 2))
"""


def start_tests(folder: Path, *options: str, **files: str) -> "subprocess.Popen[str]":
    """A pytest that runs these files of tests in two workers."""
    (folder / "conftest.py").write_text(_CONFTEST)
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-c",
        "/dev/null",
        "-p",
        "no:cacheprovider",
        *options,
        str(folder),
    )
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run_tests(folder: Path, *options: str, **files: str) -> str:
    """Its output up to its end."""
    with start_tests(folder, *options, **files) as process:
        return process.communicate(timeout=PATIENCE_S)[0]


ENDINGS = """
import os, pytest, warnings

def test_passes(): pass
def test_fails():
    print("a word")
    assert 1 == 2
def test_ends_its_process(): os._exit(7)
def test_runs_after_it(): pass
def test_warns(): warnings.warn("mind this")
def test_is_skipped(): pytest.skip("not here")
@pytest.fixture
def broken():
    yield
    raise OSError("gone")
def test_breaks_behind_itself(broken): pass
"""


def test_every_kind_of_end_is_reported(tmp_path: Path) -> None:
    printed = run_tests(tmp_path, ends=ENDINGS, more="def test_passes(): pass")
    assert "2 failed, 5 passed, 1 skipped, 1 warning, 1 error" in printed
    assert "assert 1 == 2" in printed
    assert "a word" in printed
    assert "The process that ran this test ended with 7." in printed
    assert "mind this" in printed
    assert "OSError: gone" in printed


PROCESSES = """
import os, pathlib, pytest, time

HERE = pathlib.Path(__file__)

@pytest.fixture(scope="session")
def process(): return os.getpid()
@pytest.mark.parametrize("number", range(3))
def test_tells_where_it_runs(number, process, tmp_path_factory):
    HERE.with_suffix(".begun").touch()
    while len(list(HERE.parent.glob("*.begun"))) < 2:
        time.sleep(0.01)
    assert process == os.getpid() != os.getppid()
    print("it runs in", process, tmp_path_factory.getbasetemp())
"""


def test_a_file_stays_in_one_process_with_folders_of_its_own(tmp_path: Path) -> None:
    printed = run_tests(tmp_path, "-rP", a=PROCESSES, b=PROCESSES)
    assert "6 passed" in printed
    places = Counter(line for line in printed.splitlines() if line.startswith("it runs in"))
    assert sorted(places.values()) == [3, 3]
    assert len({place.split()[-1] for place in places}) == 2


SLOW = """
import pathlib, pytest, time

HERE = pathlib.Path(__file__).parent

@pytest.fixture(scope="session")
def server():
    yield
    (HERE / "closed").touch()
def test_waits(server):
    (HERE / "begun").touch()
    time.sleep(60)
def test_is_not_reached(server): assert False
"""

FAILS_BESIDE = """
import pathlib, time

def test_fails():
    while not (pathlib.Path(__file__).parent / "begun").exists():
        time.sleep(0.01)
    assert False
"""


@pytest.mark.long
def test_the_first_failure_ends_all_workers_where_that_is_asked_for(tmp_path: Path) -> None:
    printed = run_tests(tmp_path, "-x", a=SLOW, b=FAILS_BESIDE)
    assert "1 failed" in printed
    assert "stopping after 1 failures" in printed
    assert (tmp_path / "closed").exists()


@pytest.mark.long
def test_an_interrupt_closes_what_the_workers_have_open(tmp_path: Path) -> None:
    with start_tests(tmp_path, a=SLOW) as process:
        until((tmp_path / "begun").exists, bool)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in printed
    assert (tmp_path / "closed").exists()


LEAVES_SOMETHING = """
class Something:
    def __init__(self): self.itself = self
    def __del__(self): raise OSError("left open")
def test_leaves_something(): Something()
"""


@pytest.mark.long
def test_a_fault_at_the_end_of_a_worker_fails_the_run(tmp_path: Path) -> None:
    with start_tests(tmp_path, "-W", "error", a=LEAVES_SOMETHING) as process:
        printed = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    assert "left open" in printed
    assert "ended with 1 between two tests" in printed


def test_every_other_worker_gets_whole_runs_first() -> None:
    left = FilesLeft(["tests/e2e/a.py::x", "tests/e2e/a.py::y", "tests/unit/b.py::x", "tests/unit/c.py::x"])
    assert left.take(1) == (2,)
    assert left.take(0) == (0, 1)
    left.put_back((1,))
    assert left.take(0) == (1,)
    assert left.take(2) == (3,)
    assert left.take(3) == ()

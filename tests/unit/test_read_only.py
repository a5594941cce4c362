"""A supervisor that only shows runs: nothing is started, sent, signaled, deleted or written."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.demo.writing import write
from harness.errors import ReadOnlyError
from harness.records.run import CommandKind, RunState
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.supervision import SETTINGS, SupervisorBench, until


def _files(home: Home) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in home.path.rglob("*")
        # SQLite's readers make and remove these two.
        if not path.name.endswith(("-shm", "-wal"))
    }


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[SupervisorBench]:
    made = SupervisorBench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return write("amp", Home(tmp_path), steps=200)


ACTS: dict[str, Callable[[Supervisor, RunFolder], object]] = {
    "start": lambda supervisor, _: supervisor.start(None, SETTINGS),
    "send": lambda supervisor, folder: supervisor.send(folder, CommandKind.PAUSE),
    "request_stop": lambda supervisor, folder: supervisor.request_stop(folder),
    "stop": lambda supervisor, folder: supervisor.stop(folder),
    "delete": lambda supervisor, folder: supervisor.delete(folder),
}


@pytest.mark.parametrize("act", ACTS)
def test_it_refuses(act: str, folder: RunFolder, tmp_path: Path) -> None:
    home = Home(tmp_path)
    before = _files(home)
    with pytest.raises(ReadOnlyError, match="read-only"):
        ACTS[act](Supervisor(home, is_read_only=True), folder)
    assert _files(home) == before


def test_a_run_that_hangs_is_shown_and_not_signaled(bench: SupervisorBench) -> None:
    """Another supervisor asks it for its stacks, by a signal and a mark in its folder."""
    folder = bench.start("hang")
    supervisor = Supervisor(bench.home, is_read_only=True)
    until(lambda: supervisor.status(folder).state, lambda state: state is RunState.STALLED)
    before = _files(bench.home)
    assert supervisor.status(folder).message.startswith("Not responding")
    assert [run.run_id for run in supervisor.runs()] == [folder.run_id]
    assert _files(bench.home) == before
    assert not any("stacks were requested" in line for line in folder.output_tail(400))

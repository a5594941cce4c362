"""A supervisor that only shows runs: nothing is started, sent, signaled, deleted or written."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.demo.writing import write
from harness.errors import ReadOnlyError
from harness.records import CommandKind
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.supervisor import Supervisor
from tests.supervision import SETTINGS


def _files(home: Home) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size)
        for path in home.path.rglob("*")
        # SQLite's readers make and remove these two.
        if not path.name.endswith(("-shm", "-wal"))
    }


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


def test_it_shows_runs_and_disturbs_none(tmp_path: Path) -> None:
    """Another supervisor asks a run that hangs for its stacks, by a signal and a mark in its folder."""
    home = Home(tmp_path)
    folder = write("amp", home, steps=200)
    signals: list[tuple[int, int]] = []
    supervisor = Supervisor(home, kill=lambda pid, number: signals.append((pid, number)), is_read_only=True)
    with folder.alive.open("a") as alive:
        old_s = time.time() - 3600
        os.utime(alive.fileno(), (old_s, old_s))
        before = _files(home)
        assert supervisor.status(folder).message
        assert [run.run_id for run in supervisor.runs()] == [folder.run_id]
    assert _files(home) == before
    assert signals == []

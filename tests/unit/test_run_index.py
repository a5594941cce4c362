"""The cached list of runs: ended ones are read once, changed and active ones always."""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from harness.demo.writing import write
from harness.records.entry import RunEntry
from harness.store.folder import RunFolder
from harness.store.home import INDEX, Home
from harness.store.labels import change_tags
from harness.store.run_index import RunIndex
from harness.supervisor import Supervisor
from tests.hostile_folders import edit
from tests.supervision import lock_holder_process


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


class Reads:
    """Lists a home and counts the runs that were read."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._supervisor = Supervisor(home)
        self.names: list[str] = []

    def list(self, index: RunIndex | None = None) -> list[RunEntry]:
        self.names.clear()
        return (index or RunIndex(self._home)).entries(self._read)

    def _read(self, folder: RunFolder) -> RunEntry:
        self.names.append(folder.run_id)
        return self._supervisor.entry(folder)


def test_another_process_does_not_read_ended_runs_again(home: Home) -> None:
    folders = [write(key, home, steps=20) for key in ("steady", "oom", "empty")]
    reads = Reads(home)
    first = reads.list()
    assert sorted(reads.names) == sorted(folder.run_id for folder in folders)
    assert reads.list() == first
    assert reads.names == []


@pytest.mark.parametrize(("age_s", "steps"), [(0, 0), (1_000, None)])
def test_the_steps_of_a_run_without_a_log_are_unknown_once_it_should_have_one(
    home: Home, age_s: int, steps: int | None
) -> None:
    path = home.runs_path / "20260101-000000-beef"
    path.mkdir(parents=True)
    os.utime(path, (time.time() - age_s,) * 2)
    (run,) = Reads(home).list()
    assert run.steps == steps


def _edit_log(folder: RunFolder) -> None:
    edit(folder, "UPDATE run SET state_message = 'Edited.'")


def _tag(folder: RunFolder) -> None:
    change_tags(folder, ["kept"])


def _replace(folder: RunFolder) -> None:
    copy = folder.path.with_name(".copy")
    shutil.copytree(folder.path, copy)
    shutil.rmtree(folder.path)
    copy.rename(folder.path)


@pytest.mark.parametrize("change", [_edit_log, _tag, _replace])
def test_a_run_whose_files_changed_is_read_again(change: Callable[[RunFolder], None], home: Home) -> None:
    folder, _ = write("steady", home, steps=20), write("oom", home, steps=20)
    reads = Reads(home)
    reads.list()
    change(folder)
    (entry,) = (entry for entry in reads.list() if entry.run_id == folder.run_id)
    assert reads.names == [folder.run_id]
    assert entry == Supervisor(home).entry(folder)


def test_a_run_with_a_process_is_always_read(home: Home) -> None:
    folder = write("steady", home, steps=20)
    reads = Reads(home)
    reads.list()
    with lock_holder_process(folder.alive):
        for _ in range(2):
            reads.list()
            assert reads.names == [folder.run_id]


def test_an_unreadable_run_is_read_each_time(home: Home) -> None:
    write("steady", home, steps=20).log.write_bytes(b"garbage")
    reads = Reads(home)
    for _ in range(2):
        (entry,) = reads.list()
        assert entry.problem is not None
        assert len(reads.names) == 1


def test_a_deleted_run_is_no_longer_listed(home: Home) -> None:
    folder = write("steady", home, steps=20)
    reads = Reads(home)
    reads.list()
    home.remove(folder)
    assert reads.list() == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"stepscope run index 0\n",
        b"stepscope run index 3\n[1, 2]\nnull\n{}\n" + b"[" * 100_000,
        b'stepscope run index 3\n["NAME", [], ["NAME"]]\n',
    ],
)
def test_a_damaged_index_is_written_anew(content: bytes, home: Home) -> None:
    folder = write("steady", home, steps=20)
    reads = Reads(home)
    whole = reads.list()
    (home.path / INDEX).write_bytes(content.replace(b"NAME", folder.run_id.encode()))
    assert reads.list() == whole
    assert reads.names == [folder.run_id]
    reads.list()
    assert reads.names == []


def test_an_entry_with_another_type_is_read_again(home: Home) -> None:
    write("steady", home, steps=20)
    reads = Reads(home)
    whole = reads.list()
    head, line = (home.path / INDEX).read_text().splitlines()
    name, stamp, values = json.loads(line)
    for at in range(len(values)):
        spoiled = [*values[:at], "x" if isinstance(values[at], list) else [1], *values[at + 1 :]]
        (home.path / INDEX).write_text(f"{head}\n{json.dumps([name, stamp, spoiled])}\n")
        assert reads.list() == whole
        assert len(reads.names) == 1


def test_a_home_that_cannot_be_written_is_listed(home: Home) -> None:
    write("steady", home, steps=20)
    (home.path / INDEX).mkdir()
    reads = Reads(home)
    assert len(reads.list()) == 1
    assert [path.name for path in home.path.iterdir() if path.name.startswith(f".{INDEX}")] == []


def test_a_home_on_a_read_only_disk_is_listed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux refuses to remove a file there also where there is none."""
    write("steady", home, steps=20)
    refused = OSError(errno.EROFS, os.strerror(errno.EROFS))
    monkeypatch.setattr(os, "replace", Mock(side_effect=refused))
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=refused))
    assert len(Reads(home).list()) == 1


def test_a_read_only_index_is_not_written(home: Home) -> None:
    write("steady", home, steps=20)
    Reads(home).list(RunIndex(home, is_read_only=True))
    assert not (home.path / INDEX).exists()


def test_a_moved_home_names_its_new_folders(home: Home, tmp_path: Path) -> None:
    write("steady", home, steps=20)
    Reads(home).list()
    moved = Home(tmp_path / "elsewhere")
    os.rename(home.path, moved.path)
    reads = Reads(moved)
    (entry,) = reads.list()
    assert reads.names == []
    assert entry.path == str(moved.runs()[0].path)

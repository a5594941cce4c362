"""A run's folder, followed where it goes."""

from pathlib import Path

import pytest

from harness.store.folder import RunFolder
from harness.store.folder_handle import FolderHandle
from harness.watch.inbox import Inbox
from harness.watch.jobs.folder import FolderWatch


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "run"
    path.mkdir()
    return RunFolder(path)


def test_a_renamed_folder_is_followed(folder: RunFolder, tmp_path: Path) -> None:
    with FolderHandle(folder) as handle:
        assert handle.locate() == folder.path
        moved = folder.path.rename(tmp_path / "moved")
        assert handle.locate() == moved
        assert handle.locate_log() == moved / "log.sqlite3"
        handle.steady.output.write_text("hello")
        assert (moved / "harness.log").read_text() == "hello"
        folder.path.mkdir()
        assert handle.locate() == moved


def test_a_deleted_folder_is_nowhere(folder: RunFolder) -> None:
    with FolderHandle(folder) as handle:
        folder.path.rmdir()
        assert handle.locate() is None
        folder.path.mkdir()
        assert handle.locate() is None
    assert handle.locate() is None


def test_a_run_is_requested_to_stop_once_its_folder_is_gone(folder: RunFolder) -> None:
    inbox = Inbox()
    with FolderHandle(folder) as handle:
        watch = FolderWatch(handle.locate, folder.path, inbox)
        watch.check()
        assert (inbox.lost_folder, inbox.stop_message) == (None, None)
        folder.path.rmdir()
        watch.check()
        assert inbox.stop_message == inbox.lost_folder == watch.message
        assert str(folder.path) in watch.message

"""The command after which a shell finds `stepscope`, on the pages of a server that was started without it."""

import sys
from pathlib import Path

import pytest

from dashboard.data.environment import activation


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The `bin` of an environment with the running interpreter, which is not on the PATH."""
    bin_folder = tmp_path / "my env" / "bin"
    bin_folder.mkdir(parents=True)
    for name in ("python", "activate", "stepscope"):
        (bin_folder / name).touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return bin_folder


def test_the_environment_is_activated_where_the_path_lacks_the_command(folder: Path) -> None:
    assert activation() == f"source '{folder}/activate'"


def test_nothing_is_activated_where_the_command_is_on_the_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    assert activation() is None


@pytest.mark.parametrize("name", ["activate", "stepscope"])
def test_nothing_is_activated_that_would_not_help(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert activation() is None

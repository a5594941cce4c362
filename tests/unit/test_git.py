"""The commit of a script's repository."""

import os
import subprocess
from pathlib import Path

from harness.attach.git import read_commit


def _git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_a_changed_file_whose_name_is_not_utf_8_makes_the_tree_dirty(tmp_path: Path) -> None:
    """git prints such a name as it is if `core.quotePath` is off."""
    file = Path(os.fsdecode(bytes(tmp_path) + b"/n\xe4me.py"))
    file.write_text("a = 1\n")
    _git(tmp_path, "init")
    _git(tmp_path, "config", "core.quotePath", "false")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-m", "One")
    commit, is_dirty = read_commit(tmp_path)
    assert commit is not None
    assert is_dirty is False
    file.write_text("a = 2\n")
    assert read_commit(tmp_path) == (commit, True)
    assert read_commit(tmp_path / "missing") == (None, None)

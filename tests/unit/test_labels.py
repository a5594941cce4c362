"""Tags and notes: one's own words on a run, and files that somebody else wrote."""

import json
import re
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import HomeError, UsageError
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.labels import (
    LONGEST_NOTE,
    LONGEST_TAG,
    MOST_TAGS,
    Labels,
    change_tags,
    read_labels,
    set_note,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path))
    return Home(tmp_path).create("mine", Settings(), 1)


def test_tags_are_added_and_removed_and_the_note_stays(folder: RunFolder) -> None:
    assert read_labels(folder) == Labels()
    set_note(folder, " the  good\none ")
    assert change_tags(folder, ["paper", "best"], ["absent"]) == Labels(("best", "paper"), "the good one")
    assert (
        change_tags(folder, ["paper"], ["best"]) == read_labels(folder) == Labels(("paper",), "the good one")
    )
    assert set_note(folder, "") == Labels(("paper",), "")


@pytest.mark.parametrize("tag", ["", "-x", "+x", "a b", "a,b", "a\x1b", "x" * (LONGEST_TAG + 1)])
def test_an_invalid_tag_is_refused_with_the_rule(tag: str, folder: RunFolder) -> None:
    with pytest.raises(UsageError, match="cannot be a tag: a tag has 1 to 40"):
        change_tags(folder, [tag])
    assert not folder.labels.exists()


def test_more_tags_or_a_longer_note_than_allowed_are_refused(folder: RunFolder) -> None:
    with pytest.raises(UsageError, match="at most 32"):
        change_tags(folder, [f"t{number}" for number in range(MOST_TAGS + 1)])
    with pytest.raises(UsageError, match="2,001 characters"):
        set_note(folder, "x" * (LONGEST_NOTE + 1))
    with pytest.raises(UsageError, match="cannot be printed"):
        set_note(folder, "a\x1b[2Jb")


@pytest.mark.parametrize(
    ("content", "labels"),
    [
        ("garbage", Labels()),
        ("[1]", Labels()),
        ('{"tags": "x", "note": 3}', Labels()),
        ('{"tags": ["ok", "a b", 7, null, "ok"], "note": "a\\u001bb"}', Labels(("ok",), "a\\x1bb")),
        (json.dumps({"note": "x" * 100_000}), Labels()),
        ("[" * 100_000, Labels()),
        ('{"note": "\\ud800"}', Labels()),
    ],
)
def test_of_a_foreign_file_only_what_is_valid_counts(content: str, labels: Labels, folder: RunFolder) -> None:
    folder.labels.write_text(content)
    assert read_labels(folder) == labels


def test_a_link_is_not_followed_and_not_written_through(folder: RunFolder, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text('{"tags": ["theirs"]}')
    folder.labels.symlink_to(target)
    assert read_labels(folder) == Labels()
    change_tags(folder, ["mine"])
    assert "theirs" in target.read_text()
    assert read_labels(folder) == Labels(("mine",))


def test_labels_that_cannot_be_written_are_one_sentence(folder: RunFolder) -> None:
    folder.labels.mkdir()
    with pytest.raises(HomeError, match=r"labels\.json cannot be written: Is a directory"):
        change_tags(folder, ["a"])
    assert [path.name for path in folder.path.iterdir() if path.name.startswith(".")] == []


def test_the_shell_changes_and_prints_labels(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tag", "mine", "+a", "+b", "-c"]) == 0
    assert main(["tag", "mine", "-a"]) == 0
    assert main(["note", "mine", "looks good"]) == 0
    assert main(["tag", "mine"]) == 0
    assert main(["note", "--json", "mine"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("a b\nb\nlooks good\nb\n")
    assert json.loads(out.partition("b\nlooks good\nb\n")[2])["note"] == "looks good"
    assert main(["show", "mine"]) == 0
    assert re.search(r"^tags +b\nnote +looks good$", capsys.readouterr().out, re.MULTILINE)
    assert main(["tag", "mine", "a"]) == 2
    assert "'a' does not change a tag; write +a or -a." in capsys.readouterr().err
    assert main(["tag", "mine", "+"]) == 2
    assert "'+' does not change a tag; write +tag or -tag." in capsys.readouterr().err

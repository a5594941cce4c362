"""`stepscope models --add`: a person's own models, registered for the dashboard."""

import json
import os
from pathlib import Path

import pytest

from harness.cli import main
from harness.errors import HomeError
from harness.store.home import Home
from harness.store.own_models import FILE, OwnEntry, read_own_models

SCRIPTS = Path(__file__).parents[1] / "scripts"
MODEL, DATA = f"{SCRIPTS}/own_model.py:build", f"{SCRIPTS}/own_data.py:dataset"


def a_home() -> Home:
    return Home.locate(None, os.environ)


def test_a_model_is_registered_listed_and_removed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(SCRIPTS)
    assert main(["models", "--add", "own_model.py:build", "--data", "own_data.py:dataset"]) == 0
    assert read_own_models(a_home()) == [OwnEntry(MODEL, DATA)]
    capsys.readouterr()
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [spec["default_data"] for spec in listed if spec["key"] == MODEL] == [DATA]
    assert main(["models", "--remove", "own_model.py:build"]) == 0
    assert read_own_models(a_home()) == []


@pytest.mark.parametrize("path", ["own_model.py", "../scripts/own_model.py"])
def test_the_same_model_again_replaces_its_dataset(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(SCRIPTS)
    assert main(["models", "--add", MODEL, "--data", DATA]) == 0
    assert main(["models", "--add", f"{path}:build", "--data", "digits"]) == 0
    assert read_own_models(a_home()) == [OwnEntry(MODEL, "digits")]
    assert main(["models", "--remove", f"{path}:build"]) == 0
    assert read_own_models(a_home()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--add", "cnn"], "is no function of a file, such as my_model.py:build"),
        (["--add", MODEL], "needs samples: add --data"),
        (["--add", MODEL, "--data", "synthetic"], "does not know the shape of its samples"),
        (["--add", f"{SCRIPTS}/own_model.py:nothing", "--data", DATA], "has no 'nothing'; it defines "),
        (["--add", "/nowhere/a.py:build", "--data", DATA], "There is no file"),
        (["--remove", MODEL], "is not registered; registered: none"),
        (["--data", DATA], "--data is for --add"),
    ],
)
def test_what_cannot_be_registered_is_refused_in_one_sentence(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert read_own_models(a_home()) == []


@pytest.mark.parametrize(
    "code",
    [
        "from other import *",
        "try:\n    import gone\nexcept ImportError:\n    build = print",
        "build, data = 1, 2",
    ],
)
def test_what_a_file_defines_in_a_block_or_by_an_import_is_registered(tmp_path: Path, code: str) -> None:
    (tmp_path / "model.py").write_text(code)
    assert main(["models", "--add", f"{tmp_path}/model.py:build", "--data", DATA]) == 0


def test_a_list_that_is_damaged_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / FILE).write_text("[1, 2")
    with pytest.raises(HomeError, match="is not a list of models; delete it"):
        read_own_models(home)

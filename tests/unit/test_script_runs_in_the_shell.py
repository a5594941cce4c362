"""Runs of a person's script as the shell's `list` and `show` describe them."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from harness.attach.launch import Script
from harness.cli import main, scripts
from harness.cli.queueing import split_script
from harness.records.run import SettingsRow
from harness.settings.recorded import read_recorded
from harness.settings.resolve import resolve
from harness.store.home import Home
from harness.supervisor import Supervisor
from harness.supervisor.origin import command_line
from tests.script_factories import SCRIPT_SETTINGS, an_origin, script_run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path))
    return Home.locate(None, os.environ)


def test_a_script_has_the_settings_in_its_log_and_no_model() -> None:
    recorded = read_recorded(json.dumps({**SCRIPT_SETTINGS, "dropout": 0.1}))
    assert recorded is not None
    assert (recorded.complete, recorded.title) == (None, None)
    assert recorded.get("batch_size") is None
    assert recorded.to_json() == {**SCRIPT_SETTINGS, "dropout": 0.1}


def test_a_run_of_the_catalog_has_every_setting() -> None:
    settings = resolve({"model": "mlp"})
    recorded = read_recorded(settings.model_dump_json())
    assert recorded is not None
    assert recorded.complete == settings
    assert recorded.title == "mlp laptop"
    assert recorded.to_json() == settings.model_dump(mode="json")


def test_a_log_without_settings_has_none() -> None:
    assert read_recorded("{}") is None
    assert read_recorded('{"amp": "no such mode"}') is None


def test_the_list_names_the_script_in_place_of_a_model(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    script_run(home)
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert "train.py" in text
    assert "cnn" not in text


def test_show_gives_the_first_known_values_of_a_loader_that_is_found_later(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    values = {**SCRIPT_SETTINGS, "batch_size": 8}
    known = SettingsRow(2, 5, 10, json.dumps(values), "{}", None)
    changed = {"batch_size": 16}
    rows = [known, SettingsRow(3, 9, 20, json.dumps(values | changed), json.dumps(changed), "c1")]
    folder = script_run(home, rows=rows)
    assert main(["show", folder.run_id]) == 0
    text = capsys.readouterr().out
    assert "batch_size=8" in text
    assert "changed to" in text
    assert "batch_size=16" in text


def test_show_describes_the_script_and_only_settings_that_it_has(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    script_run(home)
    assert main(["show", "train-1"]) == 0
    lines = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    facts = {name.strip(): text.strip() for name, text in lines.items()}
    assert facts["script"] == "train.py"
    assert facts["arguments"] == "--epochs 3 'two words'"
    assert facts["working folder"] == "/home/me/project"
    assert facts["git commit"] == "0123456789ab, with uncommitted changes"
    assert facts["environment"] == "Python 3.12.1, torch 2.9.0"
    assert facts["output"] == "n/a: the script's output went to its own terminal"
    assert facts["settings"] == "amp=off, matmul_precision=high, empty_cache_every=0 steps"


def test_show_as_json_carries_the_origin_and_only_settings_that_the_run_has(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    script_run(home)
    assert main(["show", "train-1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["settings"] == dict(SCRIPT_SETTINGS)
    assert document["script"]["command"] == "train.py"
    assert document["script"]["arguments"] == ["--epochs", "3", "two words"]
    assert document["versions"]["torch"] == "2.9.0"


def test_a_summary_names_the_module_of_a_script_outside_of_a_repository(home: Home) -> None:
    script_run(home, origin=an_origin(command="-m package.train", git_commit=None, git_is_dirty=None))
    (run,) = Supervisor(home).runs()
    assert run.subject == "-m package.train"


def test_a_list_names_a_script_without_its_folder() -> None:
    assert an_origin()._replace(command="/home/me/project/train.py").short_command == "train.py"
    assert an_origin()._replace(command="-m package.train").short_command == "-m package.train"


def test_the_command_of_a_script_can_be_typed_again() -> None:
    assert command_line(an_origin()) == "stepscope run train.py --epochs 3 'two words'"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "-m"], "-m needs the name of a module"),
        (["run", "no/such/train.py"], "There is no script 'no/such/train.py'"),
        (["run", "--no-such-option", "train.py"], "there is no option '--no-such-option'"),
        (["run", "--batch-size", "64", "train.py"], "before it, or with --on also --retries, --detach and"),
        (["run", "--batch-size", "64", "train.py", "word"], "'train.py' is a script: put it right after"),
        (["run", "--amp", "bf16", "train.py", "--epochs", "3"], "'train.py' is a script: put it right after"),
        (["run", "no/such/folder"], "There is no script 'no/such/folder'"),
        (["run", "/"], "The folder '/' has no __main__.py"),
    ],
)
def test_a_script_that_cannot_run_is_one_sentence_and_no_run(
    home: Home,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.unraisablehook", sys.unraisablehook)
    command = scripts.find_script(words)
    with suppress(SystemExit):
        code = main(words) if command is None else scripts.run(command)
        assert code == 2
    assert sentence in capsys.readouterr().err
    assert home.runs() == []


def test_a_file_that_is_no_script_is_told_from_a_model(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.ipynb").write_text("{}")
    assert main(["run", "train.ipynb"]) == 2
    sentence = capsys.readouterr().err
    assert "'train.ipynb' is neither a model nor a script" in sentence
    assert "In a notebook, call stepscope.watch." in sentence
    assert home.runs() == []


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ("run tool.pyz --x 1", "tool.pyz"),
        ("run --name mine ./train", "./train"),
        ("run --name=mine ./train", "./train"),
        ("run folder/", "folder/"),
        ("run folder/own.py:build", None),
        ("run mlp --data images --data-path ./photos", None),
        ("run --data-path ./photos", None),
        ("run mlp", None),
    ],
)
def test_a_script_is_a_file_of_python_or_any_path(words: str, script: str | None) -> None:
    command = scripts.find_script(words.split())
    assert (None if command is None else command.script.target) == script


def test_a_path_after_a_flag_is_a_script_of_the_queue() -> None:
    own, script = split_script(["queue", "add", "--force", "./tool", "--lr", "3"])
    assert own == ["queue", "add", "--force"]
    assert script == Script("./tool", ("--lr", "3"), is_module=False)


def test_the_value_of_an_option_is_no_script_of_the_queue() -> None:
    words = ["queue", "add", "mlp", "--data", "images", "--data-path", "./photos"]
    assert split_script(words) == (words, None)


def test_what_follows_the_script_is_the_scripts() -> None:
    command = scripts.find_script(["run", "--name", "mine", "train.py", "--name", "other", "-m", "x.py"])
    assert command is not None
    assert command.options == ("--name", "mine")
    assert command.script == Script("train.py", ("--name", "other", "-m", "x.py"), is_module=False)


def test_the_help_of_run_names_scripts_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: stepscope run [--home FOLDER] [--name NAME] [--nproc N] SCRIPT.py")
    assert "what follows SCRIPT.py or -m MODULE is the script's" in " ".join(text.split())

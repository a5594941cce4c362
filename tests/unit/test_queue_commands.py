"""`stepscope queue …`: what it prints and refuses. No worker starts."""

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.queue.files import queue_log
from harness.queue.listing import view_queue
from harness.records.queue import QueueState
from harness.store.home import Home

CPU = ("--device", "cpu")


@pytest.fixture(autouse=True)
def _no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.queueing.ensure_worker", lambda _: False)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


def test_the_words_of_run_add_an_entry_with_the_same_settings(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["queue", "add", "mlp", "--batch-size", "7", "--name", "n", *CPU, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"entry_id": 1, "position": 1}
    (row,) = queue_log(home).entries()
    settings = json.loads(row.settings)
    assert (row.name, row.device, settings["model"], settings["batch_size"]) == ("n", "cpu", "mlp", 7)


def test_the_words_after_a_script_are_those_of_the_script(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["queue", "add", "--name", "n", *CPU, "train.py", "--batch-size", "x", "--force"]) == 0
    assert main(["queue", "add", "--force", "-m", "package.train", "list"]) == 0
    first, second = queue_log(home).entries()
    assert (first.name, first.device, first.is_forced) == ("n", "cpu", 0)
    assert json.loads(first.script or "")["arguments"] == ["--batch-size", "x", "--force"]
    assert (second.device, second.is_forced) == ("auto", 1)
    assert json.loads(second.script or "")["command"] == "-m package.train"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["add", "nope"], "no model 'nope'"),
        (["add", "mlp", "--batch-size", "0"], "batch_size cannot be 0"),
        (["add", "mlp", "--device", "cuda:0"], "cuda:0 does not exist"),
        (["add", "gone.py"], "no script 'gone.py'"),
        (["add", "mlp", "--name", "\n"], "cannot be named"),
        (["remove", "first"], "'first' is no entry"),
        (["remove", "9"], "no entry 9"),
        (["move", "9", "1"], "no entry 9"),
        (["move", "9", "0"], "no position 0"),
        (["resume", "--force"], "--force is for entries"),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason_and_changes_nothing(
    home: Home, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    assert main(["queue", *words]) == 2
    assert reason in capsys.readouterr().err
    assert queue_log(home).entries() == []


def test_the_list_has_the_order_and_the_reasons(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        main(["queue", "add", "mlp", "--name", name, *CPU])
    queue_log(home).explain({1: "waits for cpu: run 'c' is on it"})
    assert main(["queue", "move", "2", "1"]) == 0
    capsys.readouterr()
    assert main(["queue", "list"]) == 0
    captured = capsys.readouterr()
    _, first, second = captured.out.splitlines()
    assert first.split()[:6] == ["1", "2", "b", "mlp", "laptop", "cpu"]
    assert "waiting  waits for cpu: run 'c' is on it" in second
    assert "No worker is running" in captured.err
    assert main(["queue", "list", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)["entries"]] == ["b", "a"]


def test_a_script_is_listed_with_its_arguments_and_why_nothing_starts(home: Home, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    main(["queue", "add", *CPU, str(tmp_path / "train.py"), "--data", "a b"])
    queue_log(home).explain({1: "waits for cpu: run 'c' is on it"})
    queue_log(home).pause(is_paused=True)
    (line,) = view_queue(home).lines
    assert (line.subject, line.is_script) == ("train.py --data 'a b'", True)
    assert line.reason == "the queue is paused"


def test_an_empty_queue_says_how_to_add(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["queue", "list"]) == 0
    assert "is empty; add to it with `stepscope queue add`" in capsys.readouterr().err


def test_entries_and_the_whole_queue_pause_and_resume(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    main(["queue", "add", "mlp", *CPU])
    log = queue_log(home)
    assert main(["queue", "pause", "1"]) == 0
    assert log.entries()[0].state == QueueState.PAUSED
    assert main(["queue", "resume", "--force", "1"]) == 0
    assert (log.entries()[0].state, log.entries()[0].is_forced) == (QueueState.WAITING, 1)
    assert main(["queue", "pause"]) == 0
    assert log.is_paused()
    main(["queue", "list"])
    assert "The queue is paused" in capsys.readouterr().err
    assert main(["queue", "resume"]) == 0
    assert not log.is_paused()
    assert main(["queue", "remove", "1"]) == 0
    assert log.entries() == []

"""`stepscope run --on ray`: what it refuses before anything starts."""

from contextlib import suppress
from pathlib import Path

import pytest

from harness.attach.launch import Script
from harness.cli import main
from harness.cli.scripts import split_remote_script
from harness.records.remote import RemoteRequest
from harness.settings.resolve import resolve
from harness.store.folder import REQUEST
from harness.store.home import Home
from harness.tune.folder import create_tune
from tests.script_factories import an_origin
from tests.tune_factories import a_tune


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


def test_a_missing_ray_is_named_with_its_extra_and_nothing_is_left(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.remote.ray_cluster.find_spec", lambda _: None)
    assert main(["run", "--on", "ray", "mlp"]) == 1
    assert "pip install 'stepscope[ray]'" in capsys.readouterr().err
    assert home.runs() == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--retries", "1"], "--retries is for runs on other machines"),
        (["--on", "ray", "--retries", "-1"], "--retries cannot be -1"),
        (["--force"], "--force is for runs on other machines"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    home: Home, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    assert main(["run", *words, "mlp"]) == 2
    assert reason in capsys.readouterr().err
    assert home.runs() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--on", "ray", "no/such/train.py"], "There is no script 'no/such/train.py'"),
        (["--on", "ray", "--batch-size", "64", "train.py"], "'train.py' is a script: put it right after"),
        (["--on", "ray", "--nproc", "2", "train.py"], "'train.py' is a script: put it right after"),
        (["--on", "slurm", "train.py"], "--on"),
    ],
)
def test_a_script_that_cannot_run_there_is_one_sentence_and_no_run(
    home: Home, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    with suppress(SystemExit):
        assert main(["run", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert home.runs() == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--on", "ray", "--device", "cpu", "tests/scripts/vae.py"], "Ray chooses the device of a script"),
        (["--on", "ray", "no/such/train.py"], "There is no script 'no/such/train.py'"),
        (["--retries", "2", "mlp"], "--retries is for runs on other machines"),
    ],
)
def test_what_cannot_wait_in_another_queue_is_refused(
    home: Home, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert main(["queue", "add", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert home.runs() == []


def test_what_follows_a_script_is_the_scripts() -> None:
    words = ["run", "--on=ray", "--detach", "--retries", "2", "train.py", "--on", "x", "--json"]
    assert split_remote_script(words) == (
        words[:5],
        Script("train.py", ("--on", "x", "--json"), is_module=False),
    )
    words = ["run", "--on", "ray", "-m", "package.train", "--lr", "3"]
    assert split_remote_script(words) == (words[:3], Script("package.train", ("--lr", "3"), is_module=True))


@pytest.mark.parametrize("words", [["run", "--on", "ray", "mlp"], ["run", "mlp"], ["list"]])
def test_words_without_a_script_stay_as_they_are(words: list[str]) -> None:
    assert split_remote_script(words) == (words, None)


def test_a_tune_continues_where_it_began(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    folder = create_tune(home, 1.0)
    folder.write(a_tune()._replace(tune_id=folder.tune_id))
    assert main(["tune", "--resume", folder.tune_id, "--on", "ray"]) == 2
    assert f"The tune {folder.tune_id} trains on this machine" in capsys.readouterr().err


def test_the_command_of_a_script_is_read_as_it_was_given(home: Home) -> None:
    origin = an_origin(arguments=("\x07", 400 * "y"))
    folder = home.create_for_script(None, origin, 1, remote=RemoteRequest("ray"))
    assert folder.script() == origin
    shown = folder.request().script
    assert shown is not None
    assert shown.arguments[0] == "\\x07"
    assert len(shown.arguments[1]) < 400


def test_the_place_of_a_run_is_in_its_request(home: Home) -> None:
    settings = resolve({"model": "mlp"})
    folder = home.create("far", settings, 1, None, RemoteRequest("ray", 2))
    assert folder.request().remote == RemoteRequest("ray", 2)
    assert home.create("near", settings, 1).request().remote is None


def test_a_request_with_an_invalid_place_is_named(home: Home) -> None:
    folder = home.create("far", resolve({"model": "mlp"}), 1, None, RemoteRequest("ray", 2))
    path = folder.path / REQUEST
    path.write_text(path.read_text().replace('"retries": 2', '"retries": "many"'))
    assert "is not a valid request" in (folder.request().problem or "")

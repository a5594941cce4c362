"""`stepscope run --on ray`: what it refuses before anything starts."""

from pathlib import Path

import pytest

from harness.cli import main
from harness.records.remote import RemoteRequest
from harness.settings.resolve import resolve
from harness.store.folder import REQUEST
from harness.store.home import Home


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
    ],
)
def test_retries_that_mean_nothing_are_refused(
    home: Home, capsys: pytest.CaptureFixture[str], words: list[str], reason: str
) -> None:
    assert main(["run", *words, "mlp"]) == 2
    assert reason in capsys.readouterr().err
    assert home.runs() == []


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

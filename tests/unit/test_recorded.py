"""Recorded runs: kept as small files, and added to a home as runs of their own."""

import zipfile
from pathlib import Path

import pytest

from harness.cli import main
from harness.demo import recordings as recorded
from harness.demo import write
from harness.demo.recordings import Recording, pack, recordings, unpack
from harness.errors import UsageError
from harness.records.run import RunState
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from tests.gpu.measures.recordings import record


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_run_comes_back_whole(home: Home, tmp_path: Path) -> None:
    folder = write("one-step", home)
    size = pack(folder, tmp_path / "runs" / "transformer-h200.zip")
    assert 0 < size <= recorded.MOST_FILE_BYTES
    (recording,) = recordings([tmp_path / "runs"])
    elsewhere = Home(tmp_path / "elsewhere")
    result, again = unpack(recording, elsewhere), unpack(recording, elsewhere)
    names = [one.request().name for one in (result, again)]
    assert names == ["recorded: transformer-h200", "recorded: transformer-h200 2"]
    assert result.request().created_unix_ns == folder.request().created_unix_ns
    with LogReader(folder.log) as before, LogReader(result.log) as after:
        assert after.steps(0, 10) == before.steps(0, 10)
        assert after.run() == before.run()


def test_the_first_folder_with_a_recording_wins_and_missing_folders_have_none(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mlp-h200.zip").touch()
    (tmp_path / "b" / "cnn-h200.zip").touch()
    result = recordings([tmp_path / "a", tmp_path / "b", tmp_path / "none"])
    assert result == [
        Recording("cnn-h200", tmp_path / "b" / "cnn-h200.zip"),
        Recording("mlp-h200", tmp_path / "a" / "mlp-h200.zip"),
    ]


def test_what_is_no_recording_is_refused_and_leaves_no_run(home: Home, tmp_path: Path) -> None:
    text = tmp_path / "text.zip"
    text.write_text("no zip", encoding="utf-8")
    empty = tmp_path / "empty.zip"
    with zipfile.ZipFile(empty, "w") as file:
        file.writestr("request.json", "{}")
    for path in (text, empty):
        with pytest.raises(UsageError, match="is not a recording of a run"):
            unpack(Recording(path.stem, path), home)
    home.check_writable()
    assert list(home.runs()) == []


@pytest.mark.slow
def test_the_demo_adds_recordings_only_where_no_scenario_is_named(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(write("one-step", home), tmp_path / "runs" / "mlp-laptop.zip")
    monkeypatch.setattr(recorded, "FOLDERS", (tmp_path / "runs",))
    assert main(["demo", "--steps", "5", "--home", str(tmp_path / "demo")]) == 0
    assert "recorded: mlp-laptop" in capsys.readouterr().out
    assert main(["demo", "empty", "--home", str(tmp_path / "demo")]) == 0
    assert "recorded" not in capsys.readouterr().out


def test_every_recording_of_this_checkout_can_be_read(home: Home) -> None:
    total = 0
    for recording in recordings():
        size = recording.path.stat().st_size
        assert size <= recorded.MOST_FILE_BYTES
        total += size
        with LogReader(unpack(recording, home).log) as log:
            assert log.run().simulated == 0
            assert log.extent().steps > 0
    assert total <= recorded.MOST_TOTAL_BYTES


@pytest.mark.slow
@pytest.mark.long
def test_a_run_is_recorded_and_shows_as_finished_elsewhere(home: Home, tmp_path: Path) -> None:
    target = tmp_path / "runs" / "mlp-laptop.zip"
    facts = record({"model": "mlp", "device": "cpu", "max_steps": 40}, target)
    assert (facts["state"], facts["steps"], facts["file"]) == ("finished", 40, "runs/mlp-laptop.zip")
    assert facts["file_bytes"] == target.stat().st_size <= recorded.MOST_FILE_BYTES
    (recording,) = recordings([target.parent])
    folder = unpack(recording, home)
    assert Supervisor(home).status(folder).state is RunState.FINISHED

"""`stepscope snapshots` and `stepscope do RUN snapshot`, without a training process."""

import json
import os
import pickle
from pathlib import Path

import pytest

from harness.cli import main
from harness.records.memory import SnapshotReason, SnapshotRow
from harness.settings.resolve import resolve
from harness.store.appender import LogAppender
from harness.store.control import ControlLog
from harness.store.home import Home
from harness.tracking.snapshot_file import write
from tests.snapshot_factories import FORWARD, RecordedAllocator, a_row
from tests.store_factories import a_run

MIB = 1 << 20


def a_snapshot(number: int) -> SnapshotRow:
    return SnapshotRow(
        snapshot_id=number,
        t_ns=number,
        step=10 * number,
        reason=SnapshotReason.REQUESTED,
        method="by hand",
        tracked_steps=3,
        allocated_bytes=9 * MIB,
        reserved_bytes=None,
        explained_bytes=8 * MIB,
        sites=1,
        took_ns=1_000_000,
        slowdown=1.5,
        file=None,
        file_bytes=None,
        message="Said by hand.",
    )


@pytest.fixture
def run_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An ended run with two snapshots."""
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path / "home"))
    folder = Home.locate(None, os.environ).create("looked-at", resolve({"model": "mlp"}), 1)
    with LogAppender(folder.log, a_run(folder.run_id, "looked-at")) as appender:
        first = a_row("a.py:1 f", 8 * MIB)._replace(snapshot_id=1)
        second = a_row("b.py:2 g", 3 * MIB, grown_bytes=MIB, grown_blocks=1)._replace(snapshot_id=2)
        older = a_snapshot(1)._replace(reason="asked")
        appender.append(rows=[first, older, second, a_snapshot(2)])
    return folder.run_id


def a_file(path: Path, size: int = MIB) -> Path:
    allocator = RecordedAllocator()
    allocator.follow()
    allocator.allocate(0, size, 1, FORWARD)
    write(path, allocator.snapshot())
    return path


def test_a_runs_snapshots_and_the_newest_ones_sites_are_listed(
    run_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshots", run_name]) == 0
    out = capsys.readouterr().out
    assert "Said by hand." in out
    assert "asked" not in out
    assert out.count("requested") >= 1
    assert "Snapshot 2:" in out
    assert "b.py:2 g" in out
    assert "a.py:1 f" not in out
    assert main(["snapshots", run_name, "--of", "1"]) == 0
    assert "a.py:1 f" in capsys.readouterr().out


def test_json_has_the_rows_as_they_are(run_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshots", run_name, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["snapshot_id"] for row in document["snapshots"]] == [1, 2]
    assert (document["of"], document["sites"][0]["grown_bytes"]) == (2, MIB)


def test_two_snapshots_are_compared(run_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshots", run_name, "--compare", "1", "2"]) == 0
    out = capsys.readouterr().out
    assert "−8.00 MiB" in out
    assert "+3.00 MiB" in out
    assert main(["snapshots", run_name, "--compare", "1", "1"]) == 0
    assert "The two snapshots do not differ" in capsys.readouterr().out


def test_files_of_torchs_are_read_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = a_file(tmp_path / "1.pickle"), a_file(tmp_path / "2.pickle", 5 * MIB)
    assert main(["snapshots", str(one)]) == 0
    assert "project/net.py:40 forward" in capsys.readouterr().out
    assert main(["snapshots", "--compare", str(one), str(two), "--json"]) == 0
    assert [change["grown_bytes"] for change in json.loads(capsys.readouterr().out)] == [4 * MIB]


def test_a_file_that_wants_to_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.pickle").write_bytes(pickle.dumps(os.getcwd))
    assert main(["snapshots", str(tmp_path / "x.pickle")]) == 1
    assert "nothing was run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--of", "7"], "no snapshot 7"),
        (["--compare", "1", "x"], "not 'x'"),
        (["--compare", "1", "9"], "it has 1, 2"),
    ],
)
def test_what_there_is_not_is_said(
    run_name: str, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["snapshots", run_name, *words]) == 2
    assert text in capsys.readouterr().err


def test_steps_travel_with_the_command(run_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Home.locate(None, os.environ).find(run_name)
    ControlLog(folder).close()
    with pytest.raises(SystemExit):
        main(["do", run_name, "empty_cache", "--steps", "3"])
    assert "--steps is for snapshots" in capsys.readouterr().err

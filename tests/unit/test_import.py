"""Imports: a run's folder and a TensorBoard log, good ones and those that nobody would write."""

import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DataType
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto
from torch.utils.tensorboard import SummaryWriter

from harness.alerts import AlertWatch
from harness.cli import main
from harness.errors import LogDamagedError, LogError, LogForeignError, UsageError
from harness.export import ExportFormat, export_run
from harness.importing import import_folder
from harness.importing.tensorboard import event_files, import_events
from harness.records.imported import ImportSource
from harness.records.ranks import RankPart
from harness.records.run import EventKind, RunState
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.reader import LogReader
from harness.supervisor import Supervisor
from harness.supervisor.processes import find_process
from harness.supervisor.ranks import read_rank_steps, read_ranks
from tests.alert_factories import a_live_run
from tests.hostile_folders import KINDS, edit, replace_by, whole_run
from tests.rank_steps import steps_of_ranks
from tests.store_factories import write_log


@pytest.fixture
def home() -> Home:
    return Home.locate(None, os.environ)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Home:
    """The home of another machine."""
    return Home(tmp_path / "elsewhere")


def scalars(folder: RunFolder, name: str) -> list[tuple[int, float | None]]:
    with LogReader(folder.log) as log:
        return [(row.first_step, row.total) for row in log.script.scalars(name, 0, 1_000, 1_001)]


def names(folder: RunFolder) -> list[str]:
    with LogReader(folder.log) as log:
        return log.script.scalar_names()


def test_a_run_folder_becomes_a_run_with_everything_it_had(home: Home, elsewhere: Home) -> None:
    source = whole_run(elsewhere)
    imported = import_folder(home, source.path)
    run = Supervisor(home).summary(imported.folder)
    before = Supervisor(elsewhere).summary(source)
    assert run.imported is not None
    assert (run.imported.source, run.imported.path) == (ImportSource.RUN, str(source.path))
    assert (run.name, run.steps, run.device) == (before.name, before.steps, before.device)
    assert run.status == before.status  # Killed: its exit is known.
    assert run.created_unix_ns == before.created_unix_ns
    files = {path.name for path in imported.folder.path.iterdir()}
    assert files == {"request.json", "alive", "control.sqlite3", "log.sqlite3", "harness.log", "captures"}
    assert (imported.folder.captures / "trace.json.gz").read_bytes() == b"x"
    assert imported.notes == ()


def test_the_logs_of_all_ranks_come_along_with_their_numbers(home: Home, elsewhere: Home) -> None:
    """Of a machine whose ranks are 4 to 6, one of them without a readable log."""
    source = elsewhere.create("ranks", Settings(model="mlp"), 1, part=RankPart(3, 4))
    for at, rows in steps_of_ranks(2).items():
        write_log(source.rank_log(at), rows)
    source.rank_log(2).write_bytes(b"no log")
    imported = import_folder(home, source.path)
    assert [facts.rank for facts in read_ranks([imported.folder], 0.0)] == [4, 5, 6]
    assert {rank: len(rows) for rank, rows in read_rank_steps([imported.folder]).items()} == {4: 100, 5: 100}
    (note,) = imported.notes
    assert note.startswith("log.rank2.sqlite3 left out: ")
    assert not imported.folder.rank_log(2).exists()


def test_a_name_that_is_taken_gets_a_number(home: Home, elsewhere: Home) -> None:
    source = whole_run(elsewhere).path
    assert [import_folder(home, source).name for _ in range(2)] == ["demo: oom", "demo: oom-1"]
    assert import_folder(home, source, "mine").name == "mine"
    assert {run.name for run in Supervisor(home).runs()} == {"demo: oom", "demo: oom-1", "mine"}
    with pytest.raises(UsageError, match="already a run named 'mine'"):
        import_folder(home, source, "mine")


def test_a_live_run_is_imported_up_to_now_and_has_no_process(home: Home, elsewhere: Home) -> None:
    with a_live_run(elsewhere) as run:
        (run.folder.process).write_text('{"boot_id": "x", "pid": 1, "start_ticks": 1, "nonce": "n"}')
        imported = import_folder(home, run.folder.path)
        assert imported.notes == ("It is still running there: imported up to now, 20 steps.",)
        assert find_process(imported.folder) is None
        assert not imported.folder.process.exists()
        assert Supervisor(home).status(imported.folder).state is RunState.LOST
        run.put(EventKind.OOM)
        with LogReader(imported.folder.log) as log:
            assert log.events() == []


def test_an_imported_run_is_no_alert(home: Home, elsewhere: Home) -> None:
    watch = AlertWatch(Supervisor(home))
    watch.poll()
    with a_live_run(elsewhere) as run:
        run.put(EventKind.OOM)
        import_folder(home, run.folder.path)
    assert watch.poll() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_is_no_regular_file_leaves_no_run(home: Home, elsewhere: Home, kind: str) -> None:
    source = whole_run(elsewhere)
    replace_by(kind, source.log)
    with pytest.raises(LogError):
        import_folder(home, source.path)
    assert home.runs() == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"folder"}))
@pytest.mark.parametrize("file", ["harness.log", "captures", "control.sqlite3", "alive", "request.json"])
def test_only_regular_files_are_copied(home: Home, elsewhere: Home, file: str, kind: str) -> None:
    source = whole_run(elsewhere)
    replace_by(kind, source.path / file)
    imported = import_folder(home, source.path)
    assert (imported.folder.path / file).exists() == (file == "request.json")
    assert all(note.startswith(f"{file} left out: ") for note in imported.notes)


def test_a_link_to_another_folder_is_not_followed(home: Home, elsewhere: Home, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "key").write_text("secret")
    source = whole_run(elsewhere)
    replace_by("nothing", source.captures)
    source.captures.symlink_to(tmp_path / "private")
    imported = import_folder(home, source.path)
    assert imported.notes == ("captures left out: it is a symbolic link.",)
    assert not imported.folder.captures.exists()


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("CREATE VIEW extra AS SELECT 1", LogForeignError),
        ("CREATE TRIGGER t AFTER UPDATE ON run BEGIN DELETE FROM steps; END", LogForeignError),
        ("PRAGMA application_id = 7", LogForeignError),
        ("UPDATE sqlite_schema SET rootpage = 4 WHERE name = 'steps'", LogDamagedError),
    ],
)
def test_a_crafted_log_leaves_no_run(
    home: Home, elsewhere: Home, statement: str, error: type[Exception]
) -> None:
    source = whole_run(elsewhere)
    edit(source, statement)
    with pytest.raises(error):
        import_folder(home, source.path)
    assert home.runs() == []


def test_captures_that_are_links_are_left_out_and_named(home: Home, elsewhere: Home) -> None:
    source = whole_run(elsewhere)
    (source.captures / "passwd").symlink_to("/etc/passwd")
    imported = import_folder(home, source.path)
    assert imported.notes == ("captures/passwd left out: it is a symbolic link, not a regular file.",)
    assert [path.name for path in imported.folder.captures.iterdir()] == ["trace.json.gz"]


def test_a_folder_that_is_no_run_is_named(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    run = whole_run(home)
    sentences = {
        tmp_path / "missing": "is not a folder",
        tmp_path / "empty": "has neither the log of a run (log.sqlite3) nor TensorBoard's event files",
        run.path: "is a run of this home already",
    }
    for path, sentence in sentences.items():
        assert main(["import", str(path)]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pytorchs_log_becomes_a_run_of_scalars(home: Home, tmp_path: Path) -> None:
    with SummaryWriter(str(tmp_path / "exp")) as writer:
        for step in range(5):
            writer.add_scalar("loss", 1 / (step + 1), step, walltime=1_700_000_000 + step)
        writer.add_scalar("acc/top1", math.nan, 4, walltime=1_700_000_004)
        writer.add_histogram("weights", np.arange(10), 4)
        writer.add_scalars("pair", {"a": 1.0}, 3)
    imported = import_folder(home, tmp_path / "exp")
    assert (imported.name, imported.contents) == ("exp", "3 scalars with 7 values")
    assert imported.notes == ("1 tag left out: not scalars (images, texts, histograms, …).",)
    assert names(imported.folder) == ["acc/top1", "loss", "pair_a/pair"]
    assert scalars(imported.folder, "loss")[:2] == [(0, 1.0), (1, 0.5)]
    run = Supervisor(home).summary(imported.folder)
    assert (run.status.state, run.steps, run.device, run.step_ns) == (RunState.FINISHED, 0, None, None)
    assert run.started_unix_ns is not None


def test_an_exported_run_comes_back_by_tensorboard(home: Home, elsewhere: Home, tmp_path: Path) -> None:
    source = whole_run(elsewhere)
    path = export_run(source, tmp_path / "out", ExportFormat.TENSORBOARD).path
    imported = import_folder(home, path)
    with LogReader(source.log) as log:
        losses = [(row.step, row.loss) for row in log.steps(0, 1_000)]
    read = scalars(imported.folder, "loss")
    assert [step for step, _ in read] == [step for step, _ in losses]
    assert [value for _, value in read] == pytest.approx([loss for _, loss in losses])


def write_events(path: Path, *events: Event, tail: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        for event in (Event(wall_time=1.0, file_version="brain.Event:2"), *events):
            writer.write(event.SerializeToString())
        file.write(tail)


def an_event(tag: str, step: int, value: float = 0.5) -> Event:
    return Event(
        wall_time=2.0, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])
    )


def a_tensor_event(tag: str, step: int, tensor: object, plugin: str | None) -> Event:
    metadata = None
    if plugin is not None:
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin))
    value = Summary.Value(tag=tag, tensor=make_tensor_proto(tensor), metadata=metadata)
    return Event(wall_time=2.0, step=step, summary=Summary(value=[value]))


def test_tensorflows_scalars_are_tensors_described_once(home: Home, tmp_path: Path) -> None:
    write_events(
        tmp_path / "log" / "events.out.tfevents.1.a",
        a_tensor_event("acc", 1, 0.25, "scalars"),
        a_tensor_event("acc", 2, 0.75, None),
        a_tensor_event("text", 1, "words", "text"),
        a_tensor_event("wide", 1, [1.0, 2.0], "scalars"),
    )
    imported = import_folder(home, tmp_path / "log")
    assert scalars(imported.folder, "acc") == [(1, 0.25), (2, 0.75)]
    assert imported.notes == ("2 tags left out: not scalars (images, texts, histograms, …).",)


@pytest.mark.parametrize(
    "tensor",
    [TensorProto(dtype=DataType.DT_VARIANT), TensorProto(dtype=DataType.DT_HALF, half_val=[70_000])],
)
def test_a_tensor_that_numpy_does_not_have_is_left_out(
    home: Home, tmp_path: Path, tensor: TensorProto
) -> None:
    odd = a_tensor_event("odd", 1, 0.0, "scalars")
    odd.summary.value[0].tensor.CopyFrom(tensor)
    write_events(tmp_path / "log" / "events.out.tfevents.1.a", an_event("loss", 1), odd)
    imported = import_folder(home, tmp_path / "log")
    assert imported.contents == "1 scalar with 1 value"
    assert imported.notes == ("1 tag left out: not scalars (images, texts, histograms, …).",)


def test_the_folders_of_a_log_stand_before_the_names(home: Home, tmp_path: Path) -> None:
    for part in ("train", "validation"):
        write_events(tmp_path / "log" / part / "events.out.tfevents.1.a", an_event("loss", 1))
    assert names(import_folder(home, tmp_path / "log").folder) == ["train/loss", "validation/loss"]


def test_a_torn_log_is_imported_up_to_the_damage(home: Home, tmp_path: Path) -> None:
    write_events(tmp_path / "log" / "events.out.tfevents.1.a", an_event("loss", 1), tail=b"\x07" * 40)
    imported = import_folder(home, tmp_path / "log")
    assert scalars(imported.folder, "loss") == [(1, 0.5)]
    assert imported.notes == (
        "events.out.tfevents.1.a is damaged or incomplete at its end; what comes before is imported.",
    )


def test_a_record_that_is_no_event_is_damage(home: Home, tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_events(log / "events.out.tfevents.1.a", an_event("loss", 1))
    for name, events in (("2.b", ()), ("3.c", (an_event("loss", 2).SerializeToString(),))):
        with (log / f"events.out.tfevents.{name}").open("wb") as file:
            for record in (*events, b"\xff\xff\xff"):
                RecordWriter(file).write(record)
    imported = import_folder(home, log)
    assert scalars(imported.folder, "loss") == [(1, 0.5), (2, 0.5)]
    assert imported.notes == tuple(
        f"events.out.tfevents.{name} is damaged or incomplete at its end; what comes before is imported."
        for name in ("2.b", "3.c")
    )


def test_event_files_that_are_deleted_meanwhile_leave_no_run(home: Home, tmp_path: Path) -> None:
    write_events(tmp_path / "events.out.tfevents.1.a", an_event("loss", 1))
    write_events(tmp_path / "events.out.tfevents.2.b", an_event("loss", 2))
    files = event_files(tmp_path)
    files[1].unlink()
    with pytest.raises(UsageError, match="cannot be read: no such file or directory"):
        import_events(home, tmp_path, files, None, 1)
    assert home.runs() == []


def test_odd_steps_and_names_are_left_out_or_escaped(home: Home, tmp_path: Path) -> None:
    events = [an_event("a\x1b[31m", 1), an_event("b", -1), an_event("b", 2**60), an_event("b", 3)]
    events += [an_event(f"n{number}", 1) for number in range(1_001)]
    write_events(tmp_path / "log" / "events.out.tfevents.1.a", *events)
    imported = import_folder(home, tmp_path / "log")
    assert imported.notes == (
        "3 scalars left out: more than 1,000.",
        "2 values left out: their steps are negative or too large.",
    )
    assert names(imported.folder)[:2] == ["a\\x1b[31m", "b"]


@pytest.mark.parametrize("unix_s", [float("nan"), float("inf"), 1e300, -1.0])
def test_a_value_without_a_valid_time_has_that_of_the_beginning(
    home: Home, tmp_path: Path, unix_s: float
) -> None:
    late, invalid = an_event("loss", 1), an_event("loss", 2)
    invalid.wall_time = unix_s
    write_events(tmp_path / "log" / "events.out.tfevents.1.a", late, invalid)
    folder = import_folder(home, tmp_path / "log").folder
    assert scalars(folder, "loss") == [(1, 0.5), (2, 0.5)]
    with LogReader(folder.log) as log:
        assert log.run().ended_unix_ns == 2_000_000_000


@pytest.mark.parametrize("content", [b"", b"not an event file at all"])
def test_event_files_without_an_event_are_refused(home: Home, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events.out.tfevents.1.a").write_bytes(content)
    with pytest.raises(UsageError, match="none of them can be read"):
        import_folder(home, tmp_path)
    assert home.runs() == []


def test_a_log_without_scalars_is_refused(home: Home, tmp_path: Path) -> None:
    write_events(tmp_path / "events.out.tfevents.1.a", a_tensor_event("text", 1, "words", "text"))
    with pytest.raises(UsageError, match="have no scalars"):
        import_folder(home, tmp_path)
    assert home.runs() == []


def test_links_and_pipes_among_event_files_are_not_opened(home: Home, tmp_path: Path) -> None:
    write_events(tmp_path / "log" / "events.out.tfevents.1.a", an_event("loss", 1))
    os.mkfifo(tmp_path / "log" / "events.out.tfevents.2.pipe")
    (tmp_path / "log" / "events.out.tfevents.3.link").symlink_to("/dev/zero")
    assert import_folder(home, tmp_path / "log").contents == "1 scalar with 1 value"


def test_without_tensorboard_the_extra_is_named(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_events(tmp_path / "events.out.tfevents.1.a", an_event("loss", 1))
    run, target = whole_run(home), tmp_path / "new" / "folder"
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    export = ["export", run.run_id, "--format", "tensorboard", "-o", str(target)]
    for words in (["import", str(tmp_path)], export):
        assert main(words) == 1
        assert "pip install 'stepscope[tensorboard]'" in capsys.readouterr().err
    assert not target.parent.exists()


def test_lists_and_json_name_an_imported_run(
    home: Home, elsewhere: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    source = whole_run(elsewhere)
    assert main(["import", str(source.path)]) == 0
    assert capsys.readouterr().out.startswith("Imported demo: oom (")
    assert main(["list"]) == 0
    assert "killed (imported)" in capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert run["imported"]["path"] == str(source.path)

"""An imported TensorBoard log on the pages: its scalars, and no made-up figures."""

from pathlib import Path
from unittest.mock import patch

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from harness.importing import import_folder
from harness.store.folder import RunFolder
from harness.store.home import Home
from tests.app.conftest import Open, Write, texts


@pytest.fixture
def imported(home: Home, tmp_path: Path) -> RunFolder:
    log = tmp_path / "exp"
    log.mkdir()
    with (log / "events.out.tfevents.1.a").open("wb") as file:
        writer = RecordWriter(file)
        for step in range(10):
            values = [Summary.Value(tag=tag, simple_value=step / 2) for tag in ("a", "b", "c", "train/loss")]
            event = Event(wall_time=1.7e9 + step, step=step, summary=Summary(value=values))
            writer.write(event.SerializeToString())
    return import_folder(home, log).folder


def test_the_live_page_shows_the_scalars_the_losses_first(imported: RunFolder, open_page: Open) -> None:
    app = open_page(run=imported.run_id)
    assert not app.exception
    (selection,) = app.multiselect
    assert selection.value == ["train/loss", "a", "b"]
    assert "imported" in texts(app)
    assert "ended before its first step" not in texts(app)
    selection.set_value(["c"]).run()
    assert not app.exception


def test_its_scalars_are_compared_with_those_of_another_run(
    imported: RunFolder, demo: Write, open_page: Open
) -> None:
    with patch("dashboard.canvas.live_plotly") as draw:
        app = open_page("compare", runs=f"{imported.run_id},{demo('steady', 50).run_id}")
    assert not app.exception
    assert "no figure in common" in app.info[0].value
    assert app.multiselect(key="compared_scalars").value == ["a", "b", "c"]
    drawn = {call.kwargs["key"]: call.args[0] for call in draw.call_args_list}
    assert [list(trace["x"]) for trace in drawn["compare_scalars"]["data"]] == 3 * [list(range(10))]
    assert "n/a for demo: steady" in texts(app)


def test_the_list_marks_it_and_has_no_figures(imported: RunFolder, open_page: Open) -> None:
    app = open_page("runs")
    (row,) = app.dataframe[0].value.to_dict("records")
    assert (row["Name"], row["State"]) == ("exp", "finished · imported")
    assert {row[name] for name in ("Model", "Device", "Step time", "Peak", "Loss")} == {"n/a"}


@pytest.mark.parametrize(("page", "missing"), [("profiler", "step times"), ("memory", "memory")])
def test_no_page_says_that_it_ended_early(
    page: str, missing: str, imported: RunFolder, open_page: Open
) -> None:
    app = open_page(page, run=imported.run_id)
    assert not app.exception
    assert [info.value for info in app.info] == [f"n/a: a TensorBoard log has scalars and no {missing}."]

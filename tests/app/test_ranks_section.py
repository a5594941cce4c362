"""The ranks of a run on the Live page, from logs written by hand."""

import time
from collections.abc import Mapping, Sequence
from unittest.mock import patch

from streamlit.testing.v1 import AppTest

from dashboard.controls import disabled_reason, unmeasurable_reason
from dashboard.data.runs import read_view
from harness.records.measurement import NO_MEASUREMENT
from harness.records.ranks import RankPart
from harness.records.run import RunState, StepRow
from harness.settings import Settings
from harness.store.folder import RunFolder
from harness.store.home import Home
from tests.app.conftest import Open, texts
from tests.rank_steps import MS, steps_of_ranks
from tests.store_factories import write_log


def _a_run(home: Home, size: int, rows: Mapping[int, Sequence[StepRow]]) -> RunFolder:
    folder = home.create("two", Settings(model="mlp"), time.time_ns(), part=RankPart(size))
    for rank, steps in rows.items():
        write_log(folder.rank_log(rank), steps)
    return folder


def test_a_run_of_several_processes_offers_no_measurement(home: Home) -> None:
    view = read_view(_a_run(home, 2, steps_of_ranks(2)))
    running = view._replace(status=view.status._replace(state=RunState.RUNNING))
    assert disabled_reason(running) is None
    assert unmeasurable_reason(running) == NO_MEASUREMENT
    assert unmeasurable_reason(running._replace(has_ranks=False)) is None


def unescaped(app: AppTest) -> str:
    """The texts of a page without Markdown's escapes."""
    return texts(app).replace("\\", "")


def test_the_late_rank_is_named_and_each_rank_has_its_times(home: Home, open_page: Open) -> None:
    rows = steps_of_ranks(3, rank=2, column="data_wait_ns", by_ns=2 * MS)
    folder = _a_run(home, 3, rows)
    with patch("dashboard.canvas.live_plotly") as draw:
        app = open_page(run=folder.run_id)
    assert not app.exception
    assert any("Rank 2 is late in data wait by 2" in warning.value for warning in app.warning)
    table = next(frame.value for frame in app.dataframe if "waits_ms" in frame.value)
    assert list(table["rank"]) == [0, 1, 2]
    assert table["waits_ms"][2] == 0
    assert all(abs(table["waits_ms"][at] - 2) < 0.2 for at in (0, 1))
    assert list(table["peak_bytes"]) == [2**20, 2 * 2**20, 3 * 2**20]
    drawn = {call.kwargs["key"]: call.args[0] for call in draw.call_args_list}
    assert len(drawn["rank_late"]["data"]) == 3
    assert {len(trace["y"]) for trace in drawn["rank_phases"]["data"]} == {3}


def test_communication_is_shown_apart_from_computing(home: Home, open_page: Open) -> None:
    rows = steps_of_ranks(2, has_waits=True, rank=1, column="backward_ns", by_ns=2 * MS)
    with patch("dashboard.canvas.live_plotly") as draw:
        app = open_page(run=_a_run(home, 2, rows).run_id)
    assert not app.exception
    assert any("Rank 1 is late in backward by 2" in warning.value for warning in app.warning)
    assert "all-reduce 500 µs after its gradients" in unescaped(app)
    table = next(frame.value for frame in app.dataframe if "waits_ms" in frame.value)
    assert table["waits_ms"][1] == 0
    drawn = {call.kwargs["key"]: call.args[0] for call in draw.call_args_list}
    assert "communication" in [trace["name"] for trace in drawn["rank_phases"]["data"]]


def test_ranks_without_a_log_or_with_few_steps_are_said_and_not_compared(home: Home, open_page: Open) -> None:
    folder = _a_run(home, 3, {rank: rows[:10] for rank, rows in steps_of_ranks(2).items()})
    app = open_page(run=folder.run_id)
    assert not app.exception
    assert "compared once they have 30 steps in common" in texts(app)
    table = next(frame.value for frame in app.dataframe if "rank" in frame.value)
    assert list(table["rank"]) == [0, 1, 2]
    assert "vanished" in table["state"][2]


def test_ranks_of_several_machines_are_compared_where_their_runs_are_in_one_home(
    home: Home, open_page: Open
) -> None:
    rows = steps_of_ranks(4, rank=3, column="data_wait_ns", by_ns=2 * MS)
    runs = []
    for first in (0, 2):
        part = RankPart(2, first, "a group", 4)
        folder = home.create(f"from rank {first}", Settings(model="mlp"), time.time_ns(), part=part)
        for at in range(2):
            write_log(folder.rank_log(at), rows[first + at], f"node {first}")
        runs.append(folder)
    home.create("another group", Settings(model="mlp"), time.time_ns(), part=RankPart(2, 2, "b", 4))
    for folder in runs:
        with patch("dashboard.canvas.live_plotly"):
            app = open_page(run=folder.run_id)
        assert not app.exception
        table = next(frame.value for frame in app.dataframe if "waits_ms" in frame.value)
        assert list(table["rank"]) == [0, 1, 2, 3]
        assert list(table["machine"]) == ["node 0", "node 0", "node 2", "node 2"]
        assert any("Rank 3 is late in data wait by 2" in warning.value for warning in app.warning)
        sentence = (
            "The 4 ranks are on 2 machines: ranks 0 to 1 in 'from rank 0', ranks 2 to 3 in 'from rank 2'."
        )
        assert sentence in unescaped(app)


def test_ranks_with_runs_elsewhere_are_said(home: Home, open_page: Open) -> None:
    part = RankPart(1, 3, "a group", 4)
    folder = home.create("the last", Settings(model="mlp"), time.time_ns(), part=part)
    write_log(folder.log, steps_of_ranks(1)[0])
    app = open_page(run=folder.run_id)
    assert not app.exception
    assert "Of 4 ranks, 3 are on other machines" in unescaped(app)
    assert "Shown: rank 3 in 'the last'." in unescaped(app)


def test_a_run_of_one_process_has_no_such_section(home: Home, open_page: Open) -> None:
    app = open_page(run=_a_run(home, 1, {0: steps_of_ranks(1)[0]}).run_id)
    assert not app.exception
    assert all("rank" not in frame.value for frame in app.dataframe)

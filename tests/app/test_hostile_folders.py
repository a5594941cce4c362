"""The pages with run folders as nobody would write them: each page draws, and says what it cannot read."""

import shutil
from pathlib import Path

import pytest

from dashboard.data import live_runs, machine_watch
from harness.device.machine import MachineSampler
from harness.device.testing.nvml import FakeNvml
from harness.store.folder import RunFolder
from harness.store.home import Home
from tests.app.conftest import Open, texts
from tests.hostile_folders import CASES, whole_run
from tests.supervision import lock_holder_process

HEALTHY = "20260101-000000-good"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run per case, and a healthy one."""
    home = Home(tmp_path_factory.mktemp("runs"))
    whole_run(home, "oom", HEALTHY)
    one = whole_run(home, "amp")
    for number, case in enumerate(CASES):
        folder = RunFolder(home.runs_path / f"20260102-{number:06d}-evil")
        shutil.copytree(one.path, folder.path)
        CASES[case](folder)
    shutil.rmtree(one.path)
    return home.runs_path


@pytest.fixture
def hostile(runs: Path, home: Home) -> list[str]:
    """The home of the pages holds them all; their ids."""
    home.path.mkdir(parents=True)
    home.runs_path.symlink_to(runs)
    return [f"20260102-{number:06d}-evil" for number in range(len(CASES))]


def test_the_runs_page_lists_every_run(hostile: list[str], open_page: Open) -> None:
    app = open_page("runs")
    first = app.dataframe[0].value
    assert len(app.warning) == 5
    assert "more runs cannot be read" in texts(app)
    app.session_state["runs_page_2"] = 2
    app.run()
    assert not app.exception
    rows = [*first.to_dict("records"), *app.dataframe[0].value.to_dict("records")]
    assert len(rows) == len(hostile) + 1
    (healthy,) = (row for row in rows if str(row["Name"]).startswith("demo: oom"))
    assert (healthy["Steps"], healthy["State"], healthy["Tags"]) == ("60", "killed", "best")
    assert [row["State"] for row in rows].count("unreadable") >= 10
    assert max(len(str(text)) for row in rows for text in row.values()) <= 1_000


@pytest.mark.parametrize(
    ("page", "every"),
    [
        ("live", 10),
        *(pytest.param(page, 1, marks=pytest.mark.long) for page in ("live", "memory", "profiler")),
    ],
)
def test_the_pages_of_a_run_bear_every_run(
    page: str, every: int, hostile: list[str], open_page: Open
) -> None:
    app = open_page(page, run=hostile[0])
    for case, run_id in [*zip(CASES, hostile, strict=True)][::every]:
        if page != "live" and " as " in case:  # Files of another kind are met by the live page already.
            continue
        app.query_params["run"] = run_id
        app.run()
        assert not app.exception, (case, app.exception)


def test_the_live_page_says_why_a_log_cannot_be_read(hostile: list[str], open_page: Open) -> None:
    app = open_page("live", run=hostile[list(CASES).index("endless view")])
    assert any("contains the view" in error.value for error in app.error)


def test_a_circular_link_is_shown_once_and_not_over_and_over(home: Home, open_page: Open) -> None:
    home.runs_path.mkdir(parents=True)
    (home.runs_path / "circular").symlink_to("circular")
    app = open_page("live", run="circular")
    assert [error.value for error in app.error if "symbolic links" in error.value]


@pytest.mark.parametrize("case", ["endless view", "pipe as log.sqlite3"])
def test_a_run_that_goes_on_and_cannot_be_read_is_named_on_the_system_page(
    case: str, home: Home, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = whole_run(home)
    CASES[case](folder)
    with lock_holder_process(folder.alive):
        _expect_warning(folder, open_page, monkeypatch)


def _expect_warning(folder: RunFolder, open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = live_runs.live_runs()
    assert (run.run_id, run.host, run.energy) == (folder.run_id, None, None)
    assert run.problem is not None
    sampler = MachineSampler(FakeNvml(()))
    machine = sampler.sample()
    sampler.close()
    monkeypatch.setattr(machine_watch.MachineWatch, "read", lambda watch: machine)
    app = open_page("system")
    assert not app.exception
    assert any("cannot be read" in warning.value or "contains" in warning.value for warning in app.warning)

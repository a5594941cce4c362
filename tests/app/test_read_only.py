"""Pages of a read-only dashboard: everything to see, nothing to press, and no way around that."""

from unittest.mock import patch

import pytest

from dashboard import commands, new_run, state
from dashboard.data import runs
from harness.errors import ReadOnlyError
from harness.records.run import CommandKind
from harness.settings.resolve import resolve
from harness.store.home import Home
from harness.store.labels import Labels, read_labels
from tests.app.conftest import Open, Write, setting, texts

CONTROLS = {
    "stop",
    "pause",
    "resume",
    "new_run",
    "start",
    "delete_run_confirmed",
    "save_labels",
    "add_tag",
    "load_demo",
    "welcome_start",
    "predict",
}


@pytest.fixture(autouse=True)
def read_only(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_READ_ONLY", "1")
    runs.supervisor.clear()


def test_every_page_is_shown_without_a_control(demo: Write, open_page: Open) -> None:
    folder = demo("leak", 600)
    for page in ("live", "memory", "profiler", "runs", "new", "system"):
        app = open_page(page, run=folder.run_id)
        assert not app.exception, page
        pressable = {button.key for button in app.button if not button.disabled}
        assert not pressable & CONTROLS, page
    assert "it shows runs and changes nothing" in texts(open_page("new"))


def test_selected_runs_can_be_opened_and_compared_only(demo: Write, open_page: Open) -> None:
    demo("steady", 50)
    demo("oom", 50)
    for rows in ([0], [0, 1]):
        with patch("dashboard.views.runs.st.dataframe", return_value={"selection": {"rows": rows}}):
            app = open_page("runs")
        assert not app.exception
        assert {button.key for button in app.button} & CONTROLS == set()


def test_what_steers_a_run_is_disabled(demo: Write, open_page: Open) -> None:
    app = open_page("live", run=demo("amp", 400).run_id)
    assert setting(app.toggle, "pin_memory").disabled
    assert app.button(key="empty_cache_0").disabled
    assert "it shows runs and changes nothing" in str(app.button(key="empty_cache_0").help)


def test_an_empty_home_offers_nothing_to_start(open_page: Open) -> None:
    app = open_page("live")
    assert {button.key for button in app.button} & CONTROLS == set()
    assert "cannot start one" in texts(app)


def test_what_the_buttons_call_is_refused_too(
    home: Home, demo: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser is not trusted: a message for a button that is not shown must do nothing."""
    folder = demo("amp", 200)
    problems: list[str] = []
    monkeypatch.setattr(state, "set_problem", problems.append)
    commands.send_command(folder, CommandKind.PAUSE)
    commands.request_stop(folder)
    commands.send_settings(folder, {"batch_size": 8}, "test")
    assert len(problems) == 3
    assert all("read-only" in problem for problem in problems)
    with pytest.raises(ReadOnlyError):
        new_run.start(resolve({"model": "mlp"}).model_dump(mode="json"), "x")
    with pytest.raises(ReadOnlyError):
        runs.load_demo()
    for act in (runs.delete_runs, lambda ids: runs.tag_runs(ids, ["x"], [])):
        with pytest.raises(ReadOnlyError):
            act([folder.run_id])
    with pytest.raises(ReadOnlyError):
        runs.set_labels(folder.run_id, Labels(), Labels(("x",), "x"))
    assert read_labels(folder) == Labels()
    assert [run.run_id for run in home.runs()] == [folder.run_id]
    assert not (folder.path / "control.sqlite3").exists()

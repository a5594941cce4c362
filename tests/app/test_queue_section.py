"""The queue on the Runs page, and Start when free on the New run page. No worker starts."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.data import queue, runs
from harness.queue.adding import add_model, add_script
from harness.queue.files import queue_log
from harness.records.queue import QueueState
from harness.records.script import ScriptOrigin
from harness.settings.resolve import resolve
from harness.store.home import Home
from harness.store.queue_log import QueueLog
from harness.supervisor import Supervisor
from tests.app.conftest import FakeDoctorRun, Open, Write, texts

Add = Callable[..., int]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Home]:
    """The homes for which a worker was requested."""
    requested: list[Home] = []
    monkeypatch.setattr(queue, "ensure_worker", requested.append)
    return requested


@pytest.fixture
def log(home: Home, workers: list[Home]) -> QueueLog:
    home.check_writable()
    return queue_log(home)


@pytest.fixture
def add(home: Home) -> Add:
    return lambda name=None: add_model(home, resolve({"model": "mlp", "device": "cpu"}), name)


def names(log: QueueLog) -> list[str | None]:
    return [row.name for row in log.entries()]


def click(app: AppTest, key: str) -> AppTest:
    return app.button(key=key).click().run()


def test_an_empty_queue_is_not_drawn(demo: Write, open_page: Open, log: QueueLog) -> None:
    demo("steady", 50)
    app = open_page("runs")
    assert not app.exception
    assert "Queue" not in texts(app)


def test_entries_are_listed_in_their_order_with_their_reasons(
    demo: Write, open_page: Open, log: QueueLog, add: Add
) -> None:
    demo("steady", 50)
    first, second, third = add("one *bold*"), add("two"), add()
    log.explain({first: "waits for cpu: run 'a' is on it"})
    log.set_state(second, QueueState.BLOCKED, "does not fit: cpu")
    log.set_state(third, QueueState.PAUSED)
    text = texts(open_page("runs"))
    assert "1. **one \\*bold\\***" in text
    assert "waits for cpu: run 'a' is on it" in text.replace("\\", "").replace("\u2060", "")
    assert "does not fit" in text
    assert "3. **mlp laptop**" in text
    assert "paused on request" in text


def test_an_entry_moves_pauses_resumes_is_forced_and_removed(
    demo: Write, open_page: Open, log: QueueLog, add: Add, workers: list[Home]
) -> None:
    demo("steady", 50)
    for name in ("a", "b"):
        add(name)
    app = click(open_page("runs"), "queue_up_2")
    assert names(log) == ["b", "a"]
    app = click(app, "queue_pause_2")
    assert log.entries()[0].state == QueueState.PAUSED
    app = click(app, "queue_resume_2")
    assert log.entries()[0].state == QueueState.WAITING
    log.set_state(2, QueueState.BLOCKED, "does not fit")
    app = click(app.run(), "queue_force_2")
    assert (log.entries()[0].state, log.entries()[0].is_forced) == (QueueState.WAITING, 1)
    app = click(app, "queue_pause")
    assert log.is_paused()
    app = click(app, "queue_resume")
    assert not log.is_paused()
    click(app, "queue_remove_2")
    assert names(log) == ["a"]
    assert workers


def test_the_buttons_have_names_and_a_script_has_no_prediction_to_force(
    demo: Write, open_page: Open, log: QueueLog, add: Add, tmp_path: Path
) -> None:
    demo("steady", 50)
    add("a")
    (tmp_path / "train.py").touch()
    origin = ScriptOrigin("train.py", (), str(tmp_path), sys.executable, None, None)
    script = add_script(runs.home(), origin, None, "cpu")
    log.set_state(script, QueueState.BLOCKED, "There is no script train.py.")
    app = open_page("runs")
    assert app.button(key=f"queue_remove_{script}").label == "Remove train\\.py"
    assert app.button(key="queue_pause_1").label == "Pause a"
    assert not any(button.key == f"queue_force_{script}" for button in app.button)


def test_a_change_of_an_entry_that_has_started_is_refused_with_a_sentence(
    demo: Write, open_page: Open, log: QueueLog, add: Add
) -> None:
    demo("steady", 50)
    app_entry = add("a")
    app = open_page("runs")
    log.begin_start(app_entry, "cpu")
    app = click(app, f"queue_remove_{app_entry}")
    assert "starting on cpu" in app.error[0].value.replace("\\", "")


def test_a_queue_is_shown_before_the_first_run(open_page: Open, log: QueueLog, add: Add) -> None:
    add("first ever")
    text = texts(open_page("runs"))
    assert "first ever" in text
    assert "No run yet" in text


def test_a_damaged_queue_is_a_sentence_and_the_runs_are_listed(
    demo: Write, open_page: Open, home: Home
) -> None:
    demo("steady", 50)
    (home.path / "queue.sqlite3").write_bytes(b"garbage" * 99)
    app = open_page("runs")
    assert not app.exception
    assert "not an SQLite file" in app.warning[0].value.replace("\\", "")
    assert len(app.dataframe[0].value) == 1


def test_a_read_only_dashboard_shows_the_queue_without_controls(
    demo: Write, open_page: Open, log: QueueLog, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    demo("steady", 50)
    add("a")
    monkeypatch.setattr(runs, "Supervisor", lambda home, is_read_only: Supervisor(home, is_read_only=True))
    app = open_page("runs")
    assert "1. **a**" in texts(app)
    assert not [button.key for button in app.button if str(button.key).startswith("queue")]


def test_start_when_free_adds_one_entry_with_the_settings_of_the_form(
    open_page: Open, fake_doctor_run: FakeDoctorRun, log: QueueLog, workers: list[Home]
) -> None:
    app = open_page("new")
    app.text_input(key="new_name").set_value("from the form").run()
    click(app, "enqueue")
    (row,) = log.entries()
    assert (row.name, row.state) == ("from the form", QueueState.WAITING)
    assert workers == [runs.home()]
    assert list(Path(runs.home().runs_path).glob("2*")) == []


def test_a_form_that_cannot_start_cannot_be_queued(
    open_page: Open, fake_doctor_run: FakeDoctorRun, log: QueueLog, demo: Write
) -> None:
    demo("steady", 50)
    app = open_page("new")
    app.text_input(key="new_name").set_value("demo: steady").run()
    app = click(app, "enqueue")
    assert "already a run named" in app.error[0].value.replace("\\", "")
    assert log.entries() == []

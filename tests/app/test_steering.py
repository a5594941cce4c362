"""Asking something of a live run from the page: what is sent, what is shown until and after the answer."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.data import runs
from harness.demo.machine import FACTS
from harness.records.run import (
    AckRow,
    CommandKind,
    CommandState,
    RunState,
    SettingsRow,
    StepRow,
)
from harness.settings import Settings
from harness.settings.spec import change
from harness.store.control import ControlLog
from harness.store.folder import RunFolder
from harness.store.home import Home
from harness.store.inserts import Row
from harness.store.writer import LogWriter
from tests.app.conftest import Open, texts
from tests.store_factories import a_run, a_step


class LiveRun:
    """A run whose log is written by hand, in this process."""

    def __init__(self, folder: RunFolder, writer: LogWriter, settings: Settings, fed: list[StepRow]) -> None:
        self.folder = folder
        self._fed = fed
        self._writer = writer
        self._settings = settings
        self._version = 0

    @property
    def requests(self) -> list[tuple[str, dict[str, object]]]:
        """Kind and payload of every command."""
        with ControlLog(self.folder) as control:
            return [(command.kind, json.loads(command.payload)) for _, command in control.commands()]

    def answer(self, state: CommandState, message: str = "", step: int = 10) -> None:
        """Answer the last command, and change the settings when it is applied."""
        with ControlLog(self.folder) as control:
            command = control.commands()[-1][1]
        if state is CommandState.APPLIED and command.kind == CommandKind.SET:
            self._version += 1
            self._settings = change(self._settings, json.loads(command.payload))
            self._writer.put(self._row(step, command.payload, command.command_id))
        self._writer.put(AckRow(command.command_id, state, step, 0, message))
        assert self._writer.flush(5.0)

    def put(self, *rows: Row) -> None:
        """Write rows of any kind."""
        for row in rows:
            self._writer.put(row)
        assert self._writer.flush(5.0)

    def go_on(self, first: int, last: int) -> None:
        """Take more steps."""
        self._fed += [a_step(step) for step in range(first, last + 1)]
        assert self._writer.flush(5.0)

    def fed(self, rows: Sequence[StepRow], is_slow: Callable[[StepRow], bool]) -> None:
        """Take these steps, some of them three times as long."""
        self._fed += [row._replace(step_ns=3 * row.step_ns) if is_slow(row) else row for row in rows]
        assert self._writer.flush(5.0)

    def begin(self) -> None:
        """Write the first version of the settings."""
        self._writer.put(self._row(0, "{}", None))
        assert self._writer.flush(5.0)

    def _row(self, step: int, changed: str, command_id: str | None) -> SettingsRow:
        return SettingsRow(self._version, step, 0, self._settings.model_dump_json(), changed, command_id)


_HOLD = """
import sys
from pathlib import Path
from harness.store.liveness import Liveness
with Liveness.hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _alive(folder: RunFolder) -> Iterator[None]:
    """A process of its own holds the run's lock: a lock does not show to the process that holds it."""
    command = [sys.executable, "-c", _HOLD, str(folder.alive)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.communicate("")


@contextmanager
def live_run(home: Home, settings: Settings) -> Iterator[LiveRun]:
    folder = home.create("live", settings, time.time_ns())
    row = a_run(folder.run_id, "live")._replace(
        started_unix_ns=time.time_ns(),
        settings=settings.model_dump_json(),
        device=json.dumps(FACTS._asdict()),
        state=RunState.RUNNING,
    )
    steps = [a_step(step) for step in range(1, 40)]

    def feed() -> list[StepRow]:
        result, steps[:] = list(steps), []
        return result

    with (
        _alive(folder),
        LogWriter(folder.log, row, feed, time.monotonic_ns) as writer,
    ):
        run = LiveRun(folder, writer, settings, steps)
        run.begin()
        yield run


@pytest.fixture
def live(home: Home) -> Iterator[LiveRun]:
    with live_run(home, Settings(batch_size=32)) as run:
        yield run


def _batch(app: AppTest) -> object:
    return app.button_group(key="set_batch_size").value


def test_a_click_is_sent_and_shown_before_it_is_answered(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    app.button_group(key="set_batch_size").set_value(64).run()
    assert live.requests == [("set", {"batch_size": 64})]
    assert _batch(app) == 64
    assert "batch 64 · queued" in texts(app)


def test_an_applied_request_says_at_which_step(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    app.button_group(key="set_batch_size").set_value(64).run()
    live.answer(CommandState.APPLIED)
    app.run()
    assert _batch(app) == 64
    assert "batch 64 · applied at step 10" in texts(app)


def test_a_rejection_restores_the_widget_and_gives_its_reason(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    app.button_group(key="set_batch_size").set_value(128).run()
    live.answer(CommandState.REJECTED, "It does not fit.")
    app.run()
    assert _batch(app) == 32
    assert "rejected" in texts(app)
    assert "It does not fit." in texts(app)


def test_a_change_from_the_shell_reaches_the_widget(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    runs.supervisor().send(live.folder, CommandKind.SET, {"amp": "bf16"}, "shell")
    live.answer(CommandState.APPLIED)
    app.run()
    assert app.button_group(key="set_amp").value == "bf16"


def test_a_value_that_cannot_be_is_refused_in_one_sentence(
    live: LiveRun, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(run=live.folder.run_id)
    live_send = runs.supervisor().send

    def send(*args: object, **more: object) -> str:
        del args, more
        return live_send(live.folder, CommandKind.SET, {"batch_size": 0}, "dashboard")

    monkeypatch.setattr(runs.supervisor(), "send", send)
    app.button_group(key="set_batch_size").set_value(64).run()
    assert "batch\\_size cannot be 0" in app.error[0].value
    assert _batch(app) == 32
    assert live.requests == []


def test_a_setting_in_the_drawer_is_sent(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    app.number_input(key="set_grad_accumulation_now_1").set_value(4).run()
    assert live.requests == [("set", {"grad_accumulation": 4})]
    assert app.number_input(key="set_grad_accumulation_now_4").value == 4


def test_opening_the_page_asks_for_nothing(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    app.run()
    assert live.requests == []


def test_empty_cache_pause_and_stop_are_sent(
    live: LiveRun, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = []
    monkeypatch.setattr(runs.supervisor(), "request_stop", lambda folder, source: stopped.append(folder))
    app = open_page(run=live.folder.run_id)
    app.button(key="empty_cache").click().run()
    app.button(key="pause").click().run()
    app.button(key="stop").click().run()
    assert [kind for kind, _ in live.requests] == ["empty_cache", "pause"]
    assert stopped == [live.folder]
    assert not app.exception


def test_a_stop_that_cannot_be_sent_says_why_and_what_happens_instead(
    live: LiveRun, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.supervisor(), "request_stop", lambda folder, source: "The disk is full.")
    app = open_page(run=live.folder.run_id)
    app.button(key="stop").click().run()
    assert app.error[0].value.replace("\\", "") == "The disk is full. The run is stopped by signals instead."


def test_precisions_the_device_cannot_do_are_disabled_with_the_reason(
    home: Home, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = FACTS._replace(name="Old GPU", amp_modes=("off", "fp16"))  # type: ignore[arg-type]
    monkeypatch.setattr(runs, "read_device", lambda text: facts)
    with live_run(home, Settings()) as run:
        app = open_page(run=run.folder.run_id)
        assert app.button(key="no_bf16").disabled
        assert "Old GPU" in str(app.button(key="no_bf16").help)


def test_a_frozen_view_holds_the_chart_while_the_figures_go_on(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    app.toggle(key="frozen").set_value(True).run()
    held = app.session_state["tick"]
    live.go_on(40, 60)
    app.run()
    assert app.session_state["tick"].figure == held.figure
    assert app.session_state["tick"].cards != held.cards
    app.toggle(key="frozen").set_value(False).run()
    assert app.session_state["tick"].figure != held.figure


def test_advice_is_applied_by_one_button_and_queued_until_applied(home: Home, open_page: Open) -> None:
    with live_run(home, Settings(empty_cache_every=10)) as live:
        live.fed([a_step(step) for step in range(40, 200)], lambda row: row.step % 10 == 0)
        app = open_page("profiler", run=live.folder.run_id)
        button = app.button(key="apply_empty_cache")
        assert button.label == "Apply empty_cache every 0 steps"
        assert not button.disabled
        button.click().run()
        assert live.requests == [("set", {"empty_cache_every": 0})]
        assert app.button(key="apply_empty_cache").disabled
        assert "queued" in texts(app)
        live.answer(CommandState.APPLIED, "empty_cache_every 10 → 0.", step=199)
        app.run()
        assert "applied at step 199" in texts(app)
        assert not [button for button in app.button if (button.key or "").startswith("apply")]

"""Asking something of a live run from the page: what is sent, what is shown until and after the answer."""

from collections.abc import Iterator
from typing import Any

import pytest
from streamlit.runtime.scriptrunner import RerunData, get_script_run_ctx
from streamlit.testing.v1 import AppTest

from dashboard import state
from dashboard.data import runs
from harness.demo.machine import FACTS
from harness.records.run import (
    CommandKind,
    CommandState,
)
from harness.settings import Settings
from harness.store.home import Home
from tests.app.conftest import Open, setting, texts
from tests.app.live_factories import LiveRun, live_run
from tests.store_factories import a_step


@pytest.fixture
def live(home: Home) -> Iterator[LiveRun]:
    with live_run(home, Settings(batch_size=32)) as run:
        yield run


def _batch(app: AppTest) -> object:
    return setting(app.button_group, "batch_size").value


def test_a_click_is_sent_and_shown_before_it_is_answered(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    setting(app.button_group, "batch_size").set_value(64).run()
    assert live.requests == [("set", {"batch_size": 64})]
    assert _batch(app) == 64
    assert "batch 64 · queued" in texts(app)


def test_an_applied_request_says_at_which_step(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    setting(app.button_group, "batch_size").set_value(64).run()
    live.answer(CommandState.APPLIED)
    app.run()
    assert _batch(app) == 64
    assert "batch 64 · applied at step 10" in texts(app)


def test_a_rejection_restores_the_widget_and_gives_its_reason(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    setting(app.button_group, "batch_size").set_value(128).run()
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
    assert setting(app.button_group, "amp").value == "bf16"


def test_an_earlier_value_that_comes_late_from_the_browser_undoes_no_change_from_the_shell(
    live: LiveRun, open_page: Open
) -> None:
    app = open_page(run=live.folder.run_id)
    late = app._tree.get_widget_states()
    runs.supervisor().send(live.folder, CommandKind.SET, {"batch_size": 64}, "shell")
    app.run()
    app._run(late)
    assert live.requests == [("set", {"batch_size": 64})]
    assert _batch(app) == 64


def test_a_click_on_a_widget_that_is_being_replaced_is_sent(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    batch = setting(app.button_group, "batch_size")
    batch.set_value(16)
    clicked = app._tree.get_widget_states()
    batch.set_value(32)
    runs.supervisor().send(live.folder, CommandKind.SET, {"batch_size": 64}, "shell")
    app.run()
    app._run(clicked)
    assert live.requests == [("set", {"batch_size": 64}), ("set", {"batch_size": 16})]
    assert _batch(app) == 16


def test_a_value_that_cannot_be_is_refused_in_one_sentence(
    live: LiveRun, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = open_page(run=live.folder.run_id)
    live_send = runs.supervisor().send

    def send(*args: object, **more: object) -> str:
        del args, more
        return live_send(live.folder, CommandKind.SET, {"batch_size": 0}, "dashboard")

    monkeypatch.setattr(runs.supervisor(), "send", send)
    setting(app.button_group, "batch_size").set_value(64).run()
    assert "batch_size cannot be 0" in app.error[0].value
    assert _batch(app) == 32
    assert live.requests == []


def test_a_setting_in_the_drawer_is_sent(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    setting(app.number_input, "grad_accumulation", "popover").set_value(4).run()
    assert live.requests == [("set", {"grad_accumulation": 4})]
    assert setting(app.number_input, "grad_accumulation", "popover").value == 4


@pytest.mark.parametrize("result", [CommandState.REJECTED, CommandState.EXPIRED, CommandState.ROLLED_BACK])
def test_a_field_shows_the_value_in_effect_after_a_refusal_before_the_page_is_drawn_again(
    live: LiveRun, open_page: Open, monkeypatch: pytest.MonkeyPatch, result: CommandState
) -> None:
    app = open_page(run=live.folder.run_id)
    live_send = runs.supervisor().send

    def send(*arguments: Any, **options: Any) -> str:
        command_id = live_send(*arguments, **options)
        live.answer(result, "It does not fit.")
        return command_id

    monkeypatch.setattr(runs.supervisor(), "send", send)
    setting(app.number_input, "grad_accumulation", "popover").set_value(4).run()
    assert live.requests == [("set", {"grad_accumulation": 4})]
    assert setting(app.number_input, "grad_accumulation", "popover").value == 1


def test_a_value_that_is_requested_already_is_not_requested_again(live: LiveRun, open_page: Open) -> None:
    app = open_page(run=live.folder.run_id)
    runs.supervisor().send(live.folder, CommandKind.SET, {"batch_size": 64}, "shell")
    setting(app.button_group, "batch_size").set_value(64).run()
    assert live.requests == [("set", {"batch_size": 64})]
    setting(app.button_group, "batch_size").set_value(32).run()
    assert live.requests[1:] == [("set", {"batch_size": 32})]


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
    app.button(key="empty_cache_0").click().run()
    app.button(key="pause").click().run()
    app.button(key="stop").click().run()
    assert [kind for kind, _ in live.requests] == ["empty_cache", "pause"]
    assert stopped == [live.folder]
    assert not app.exception


def test_a_click_whose_callback_runs_twice_is_sent_once(
    live: LiveRun, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_SAME_CLICK_S", 60.0)
    app = open_page(run=live.folder.run_id)
    for key in ("pause", "pause", "empty_cache_0", "pause"):
        app.button(key=key).click().run()
    assert [kind for kind, _ in live.requests] == ["pause", "empty_cache", "pause"]


@pytest.mark.parametrize(
    ("page", "name"), [("live", "empty_cache"), ("memory", "snapshot"), ("profiler", "profile_now")]
)
def test_a_late_click_on_a_page_that_a_slow_connection_still_shows_sends_no_second_command(
    page: str, name: str, live: LiveRun, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_SAME_CLICK_S", 0.0)
    app = open_page(page, run=live.folder.run_id)
    tree = app._tree
    for _ in range(2):
        app._tree = tree
        app.button(key=f"{name}_0").click().run()
        assert len(live.requests) == 1
    if name != "profile_now":  # One at a time: its button is disabled.
        app.button(key=f"{name}_1").click().run()
        assert len(live.requests) == 2


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
        button = app.button(key="apply_empty_cache_empty_cache_every_0")
        assert button.label == "Apply empty_cache every 0 steps"
        assert not button.disabled
        button.click().run()
        assert live.requests == [("set", {"empty_cache_every": 0})]
        assert app.button(key="apply_empty_cache_empty_cache_every_0").disabled
        assert "queued" in texts(app)
        live.answer(CommandState.APPLIED, "empty_cache_every 10 → 0.", step=199)
        app.run()
        assert "applied at step 199" in texts(app)
        assert not [button for button in app.button if (button.key or "").startswith("apply")]


def test_a_change_is_sent_even_if_another_run_of_the_page_is_requested_meanwhile(
    live: LiveRun, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick may bring the value, and its own request comes while the callback runs."""
    app = open_page(run=live.folder.run_id)
    read = state.widget_value

    def read_late(key: str) -> object:
        monkeypatch.setattr(state, "widget_value", read)
        context = get_script_run_ctx()
        assert context is not None
        assert context.script_requests is not None
        assert context.script_requests.request_rerun(RerunData())
        return read(key)

    monkeypatch.setattr(state, "widget_value", read_late)
    setting(app.button_group, "batch_size").set_value(64).run()
    assert state.widget_value is read
    assert live.requests == [("set", {"batch_size": 64})]
    assert _batch(app) == 64

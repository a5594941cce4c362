"""The Profiler page on every scenario, its choices of steps, and what it says when there is nothing."""

import time
from typing import Any
from unittest.mock import patch

import pytest
from streamlit.testing.v1 import AppTest

from harness.demo.scenarios import SCENARIOS
from harness.settings import Settings
from harness.store.home import Home
from tests.app.conftest import Open, Write, texts


def _messages(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def _table(app: AppTest, column: str) -> Any:
    """The first table that has this column."""
    frames = [element.value for element in app.dataframe]
    return next(frame for frame in frames if column in frame.columns)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_is_shown_without_an_exception(scenario: str, demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo(scenario).run_id)
    assert not app.exception
    assert "simulated" in texts(app)
    assert len(app.error) == (scenario in ("oom", "lost"))


def test_without_a_run_the_page_says_what_to_do(open_page: Open) -> None:
    assert "No run yet" in texts(open_page("profiler"))


def test_an_unknown_run_is_one_sentence(demo: Write, open_page: Open) -> None:
    demo("steady", 100)
    app = open_page("profiler", run="nonsense")
    assert not app.exception
    assert "There is no run" in app.error[0].value


def test_a_run_without_a_step_says_so(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("empty").run_id)
    assert "ended before its first step" in app.info[0].value
    assert not app.dataframe


def test_a_run_that_is_starting_is_waited_for(home: Home, open_page: Open) -> None:
    home.create("slow start", Settings(), time.time_ns())
    app = open_page("profiler")
    assert not app.exception
    assert "Waiting for the first step" in app.info[0].value


def test_one_step_is_too_few_for_a_verdict(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("one-step").run_id)
    assert "Too few steps" in app.info[0].value
    assert "0 of 16 steady-state steps" in _messages(app)


def test_the_verdict_comes_with_why_and_what_next_is_said_once(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("steady", 400).run_id)
    message = app.info[0].value.replace("\\", "")
    assert message.startswith("**Compute-bound.**")
    assert "Between two steps the device was idle" in message
    assert "Advice" in _messages(app)
    assert "**Next:**" not in message


def test_a_share_that_is_rounded_up_is_no_lower_bound(demo: Write, open_page: Open) -> None:
    with patch("dashboard.canvas.live_cards") as draw:
        open_page("profiler", run=demo("steady", 400).run_id)
    notes = {card.label: card.note for card in draw.call_args.args[0]}
    assert notes["Device gap"] == "< 0.1 % idle"


def test_a_slow_loader_is_called_by_its_name(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("slow-loader", 800).run_id)
    app.selectbox(key="timing_range").set_value("settings 1").run()
    assert "Input-bound" in app.warning[0].value.replace("\\", "")


def test_the_range_limits_the_steps_analyzed(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("steady", 3_000).run_id)
    assert "Steps 2,001 to 3,000" in _messages(app)
    app.selectbox(key="timing_range").set_value("all steps").run()
    assert "Steps 1 to 3,000" in _messages(app)
    assert "5 flagged steps excluded" in _messages(app)


def test_a_long_run_is_sampled_and_says_so(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("steady", 20_000).run_id)
    app.selectbox(key="timing_range").set_value("all steps").run()
    assert not app.exception
    assert "one step in 5 sampled" in _messages(app)


def test_two_versions_of_the_settings_stand_side_by_side(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("amp", 2_000).run_id)
    app.selectbox(key="timing_range").set_value("settings 2")
    app.selectbox(key="timing_against").set_value("settings 1").run()
    assert not app.exception
    message = _messages(app)
    assert "Observed: a step takes 69" in message
    assert "cannot prove the cause" in message
    changes = _table(app, "change_pct")
    assert list(changes["phase"])[:2] == ["step", "gap"]
    assert changes["change_pct"][0] == pytest.approx(-43, abs=3)


def test_phases_of_both_clocks_stand_in_the_table(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("steady", 400).run_id)
    table = _table(app, "clock")
    assert set(table["clock"]) == {"CPU, issue time", "device"}
    of_cpu = table[(table["clock"] == "CPU, issue time") & (table["phase"] != "step")]
    assert of_cpu["share_pct"].sum() == pytest.approx(100)


def test_advice_stands_with_its_gain_and_evidence_and_nothing_to_press_in_a_run_that_is_over(
    demo: Write, open_page: Open
) -> None:
    app = open_page("profiler", run=demo("fragmentation").run_id)
    message = _messages(app)
    assert "Advice" in message
    assert "at most 48 % less time per sample" in message
    assert "For the next run: AMP bf16" in message
    assert "34.9 GiB of the 48.0 GiB" in message
    assert "expandable_segments" in message
    assert "(`harness/device/peaks.py`)" in texts(app)
    assert not [button for button in app.button if (button.key or "").startswith("apply")]


def test_without_advice_the_page_says_that_nothing_stands_out(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("amp", 4_000).run_id)
    assert "No advice: nothing stands out in the last" in _messages(app)
    assert "Advice" not in _messages(app)
    assert "**Next:** Everything else within steps takes little time." in _messages(app)


def test_nothing_new_is_drawn_from_what_is_kept(demo: Write, open_page: Open) -> None:
    app = open_page("profiler", run=demo("steady", 400).run_id)
    first = app.session_state["timing_tick"]
    app.run()
    assert app.session_state["timing_tick"] is first

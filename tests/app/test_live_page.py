"""The Live page on every scenario, on damaged logs, and on names that look like markup."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.wire import unpack
from harness.demo.scenarios import SCENARIOS
from harness.records.run import CommandKind, CommandRow, RunState
from harness.settings import Settings
from harness.store.appender import LogAppender
from harness.store.control import ControlLog
from harness.store.home import Home
from tests.app.conftest import Open, Write, setting, texts
from tests.store_factories import a_run, a_step


def _figure(app: AppTest) -> dict[str, object]:
    """The chart that was sent to the browser."""
    tick = app.session_state["tick"]
    head: dict[str, object] = unpack(tick.figure)
    return head


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_is_shown_without_an_exception(scenario: str, demo: Write, open_page: Open) -> None:
    folder = demo(scenario)
    app = open_page(run=folder.run_id)
    assert not app.exception
    assert "simulated" in texts(app)


def test_an_empty_home_says_what_to_do(open_page: Open) -> None:
    app = open_page()
    assert "No run yet" in texts(app)
    assert {"Start a run", "Load the simulated runs"} <= {button.label for button in app.button}


def test_without_an_address_the_newest_run_is_shown_and_named_in_it(demo: Write, open_page: Open) -> None:
    folder = demo("steady", 100)
    app = open_page()
    assert app.query_params["run"] == folder.run_id


def test_an_unknown_run_is_one_sentence(demo: Write, open_page: Open) -> None:
    demo("steady", 100)
    app = open_page(run="nonsense")
    assert not app.exception
    assert "There is no run" in app.error[0].value


def test_a_run_is_found_by_its_name(demo: Write, open_page: Open) -> None:
    folder = demo("steady", 100)
    app = open_page(run="demo: steady")
    assert app.query_params["run"] == folder.run_id


def test_changes_are_markers_and_stand_in_the_list_with_what_was_observed(
    demo: Write, open_page: Open
) -> None:
    app = open_page(run=demo("amp").run_id)
    markers = _figure(app)["markers"]
    assert isinstance(markers, list)
    assert "AMP bf16" in [marker["label"] for marker in markers]
    text = texts(app)
    assert "applied at step" in text
    assert "undisturbed step" in text
    assert "transition steps excluded" in text


def test_out_of_memory_is_a_sentence_and_a_red_marker(demo: Write, open_page: Open) -> None:
    app = open_page(run=demo("oom").run_id)
    assert "Out of memory" in app.error[0].value
    markers = _figure(app)["markers"]
    assert isinstance(markers, list)
    assert [marker["tone"] for marker in markers if marker["label"] == "out of memory"] == ["bad"]


def test_a_run_without_a_step_says_so_instead_of_drawing_an_empty_chart(demo: Write, open_page: Open) -> None:
    app = open_page(run=demo("empty").run_id)
    assert "ended before its first step" in app.info[0].value
    assert "tick" not in app.session_state


@pytest.mark.parametrize("page", ["live", "profiler"])
def test_a_run_without_a_log_is_not_said_to_have_no_step(home: Home, open_page: Open, page: str) -> None:
    home.create("long ago", Settings(), time.time_ns() - 3_600_000_000_000)
    app = open_page(page)
    assert not app.exception
    assert any(info.value.startswith("The run has no log.") for info in app.info)


def test_a_run_that_is_starting_is_waited_for(home: Home, open_page: Open) -> None:
    home.create("slow start", Settings(), time.time_ns())
    app = open_page()
    assert not app.exception
    assert "Waiting for the first step" in app.info[0].value


@pytest.mark.parametrize(
    "name", ["**bold**", "[x](y)", "<script>alert(1)</script>", "$x$", ":red[a]", ":smile:"]
)
def test_a_name_is_text_and_never_markup(name: str, home: Home, open_page: Open) -> None:
    home.create(name, Settings(), time.time_ns())
    app = open_page()
    assert not app.exception
    assert app.selectbox(key="pick_run").options == [name]
    assert not any(name in element.value for element in app.markdown)


def test_the_choice_of_runs_begins_with_the_one_shown_also_if_the_first_run_of_the_page_is_missed(
    demo: Write, open_page: Open, home: Home
) -> None:
    demo("one-step", 1)
    demo("steady", 50)
    second = list(home.runs())[1].run_id
    box = open_page(run=second).run().selectbox(key="pick_run")
    assert box.value == second
    assert (box.proto.default, box.proto.set_value) == (1, False)


@pytest.mark.parametrize("damage", [b"not SQLite at all", b"SQLite format 3\0" + bytes(5_000)])
def test_a_damaged_log_is_one_sentence(damage: bytes, demo: Write, open_page: Open) -> None:
    folder = demo("steady", 100)
    folder.log.write_bytes(damage)
    app = open_page(run=folder.run_id)
    assert not app.exception
    (sentence,) = app.error
    assert str(folder.log.name) in sentence.value.replace("\\", "")
    assert "unreadable" in texts(app)
    assert "lost" not in texts(app)


def test_a_truncated_log_is_one_sentence(demo: Write, open_page: Open) -> None:
    folder = demo("steady")
    size = folder.log.stat().st_size
    with folder.log.open("r+b") as file:
        file.truncate(size // 2)
    app = open_page(run=folder.run_id)
    assert not app.exception
    assert app.error


def test_controls_of_a_run_that_is_over_are_disabled_and_say_why(demo: Write, open_page: Open) -> None:
    app = open_page(run=demo("steady", 100).run_id)
    assert app.button(key="empty_cache_0").disabled
    assert "simulated" in str(app.button(key="empty_cache_0").help)
    assert setting(app.toggle, "pin_memory").disabled


def test_a_tick_is_small_and_the_same_at_any_length(demo: Write, open_page: Open) -> None:
    sizes = []
    for steps in (1_000, 20_000):
        app = open_page(run=demo("steady", steps).run_id)
        sizes.append(len(app.session_state["tick"].figure))
    assert max(sizes) < 100_000
    assert max(sizes) < 1.3 * min(sizes)


def test_the_window_narrows_what_is_drawn(demo: Write, open_page: Open) -> None:
    app = open_page(run=demo("steady", 5_000).run_id)
    app.button_group(key="window").set_value("1k").run()
    extent = _figure(app)["extent"]
    assert isinstance(extent, list)
    assert extent[1] - extent[0] == pytest.approx(999, abs=2)


def test_nothing_new_is_drawn_from_what_is_kept(demo: Write, open_page: Open) -> None:
    app = open_page(run=demo("steady", 500).run_id)
    first = app.session_state["tick"]
    app.run()
    assert app.session_state["tick"] is first


def test_the_home_in_a_file_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPSCOPE_HOME", str(tmp_path / "file"))
    app = open_page()
    assert not app.exception


def test_a_queued_request_shows_in_its_widget_and_in_the_list(home: Home, open_page: Open) -> None:
    folder = home.create("waiting", Settings(), time.time_ns())
    with ControlLog(folder) as control:
        control.send(CommandRow("c1", time.time_ns(), CommandKind.SET, '{"batch_size": 64}', "shell"))
    app = open_page(run=folder.run_id)
    assert setting(app.button_group, "batch_size").value == 64
    assert "batch 64" in texts(app)
    assert "queued" in texts(app)
    assert RunState.LAUNCHING.value in texts(app)


def test_transition_steps_are_shaded_where_something_was_changed(demo: Write, open_page: Open) -> None:
    app = open_page(run=demo("oom").run_id)
    app.button_group(key="window").set_value("1k").run()
    layout = _figure(app)["layout"]
    assert isinstance(layout, dict)
    shades = [shape for shape in layout["shapes"] if shape["type"] == "rect"]
    assert shades
    assert all(0 < shade["x1"] - shade["x0"] < 30 for shade in shades)


def test_a_run_that_ran_out_of_memory_leads_to_the_memory_page(demo: Write, open_page: Open) -> None:
    folder = demo("oom")
    app = open_page(run=folder.run_id)
    assert "out of memory at step" in texts(app)
    assert any(link.proto.label == "Causes and remedies" for link in app.get("page_link"))


def test_a_healthy_run_is_not_alarming(demo: Write, open_page: Open) -> None:
    app = open_page(run=demo("steady").run_id)
    assert not [link for link in app.get("page_link") if link.proto.label == "Causes and remedies"]


_UNWRITTEN = """
import sys, time
from pathlib import Path
from harness.store.liveness import Liveness
with Liveness.hold(Path(sys.argv[1])) as alive:
    alive.signs.step_finished(5_123)
    alive.signs.set_unwritten(time.time_ns() - 12 * 10**9, "database or disk is full")
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_log_that_is_not_written_is_a_warning_across_the_page(home: Home, open_page: Open) -> None:
    folder = home.create("full", Settings(), time.time_ns())
    with LogAppender(folder.log, a_run(folder.run_id, "full")._replace(state=RunState.RUNNING)) as log:
        log.append([a_step(step) for step in range(1, 51)])
    command = [sys.executable, "-c", _UNWRITTEN, str(folder.alive)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        app = open_page(run=folder.run_id)
        process.communicate("")
    assert not app.exception
    (warning,) = [text.value for text in app.warning]
    assert "Training at step 5,123" in warning
    assert "is the disk full?" in warning


def test_a_long_error_leaves_room_on_the_page_and_stands_in_the_details(home: Home, open_page: Open) -> None:
    folder = home.create("failed", Settings(), time.time_ns())
    message = f"RuntimeError: Errors in loading state_dict: {'size mismatch; ' * 120}the last one."
    run = a_run(folder.run_id, "failed")._replace(
        state=RunState.FAILED, state_message=message, ended_unix_ns=time.time_ns()
    )
    with LogAppender(folder.log, run) as log:
        log.append([a_step(step) for step in range(1, 51)])
    app = open_page(run=folder.run_id)
    (error,) = [text.value.replace("\\", "") for text in app.error]
    assert len(error) < 1_000
    assert error.startswith("RuntimeError: Errors in loading state_dict: size mismatch")
    assert "the last one." in error
    app.session_state["details"] = True
    assert message in texts(app.run())
    for page in ("memory", "profiler"):
        assert [text.value.replace("\\", "") for text in open_page(page, run=folder.run_id).error] == [error]

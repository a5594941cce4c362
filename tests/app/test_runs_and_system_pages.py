"""The Runs page lists, and the System page tells, whatever state things are in."""

import shutil
from typing import Any
from unittest.mock import patch

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.components import plain
from dashboard.data.doctor import DoctorRun
from dashboard.data.runs import supervisor
from dashboard.view_models.runs import column_widths, table_rows
from dashboard.views import run_actions
from harness.demo.scenarios import SCENARIOS
from harness.demo.writing import write
from harness.device.doctor.report import from_json
from harness.errors import StepscopeError
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.store.home import Home
from harness.store.labels import Labels, change_tags, read_labels, set_note
from tests.app.conftest import FakeDoctorRun, Open, Write, texts
from tests.app.live_factories import live_run
from tests.entry_factories import an_entry
from tests.many_runs import write_many


def test_every_scenario_is_a_row(demo: Write, open_page: Open) -> None:
    for scenario in SCENARIOS:
        demo(scenario, 50 if scenario != "empty" else None)
    app = open_page("runs")
    assert not app.exception
    table = app.dataframe[0].value
    assert set(table["Name"]) == {f"demo: {scenario}" for scenario in SCENARIOS}
    assert all("simulated" in state for state in table["State"])


def test_an_underscore_within_a_word_is_not_escaped() -> None:
    assert plain("noise_steps") == "noise_steps"
    assert plain("_a_ __b__") == r"\_a\_ \_\_b\_\_"


def test_a_column_is_as_wide_as_the_longest_of_its_cells() -> None:
    rows = [{"Duration": "2 s", "Steps": "60"}] * 11 + [{"Duration": "19 min 53 s", "Steps": "20,400"}]
    narrow, wide = column_widths(rows[:-1]), column_widths(rows)
    assert wide["Duration"] > narrow["Duration"]
    assert wide["Duration"] > wide["Steps"] > 0
    assert column_widths([{"n" * 60: "1"}], longest_heading=28) == {
        "n" * 60: column_widths([{"a": "b" * 28}])["a"]
    }


def test_a_run_of_some_milliseconds_does_not_last_0_s() -> None:
    run = an_entry("a")._replace(started_unix_ns=10**18, ended_unix_ns=10**18 + 45_000_000)
    rows = table_rows([run, run._replace(ended_unix_ns=10**18)], now_unix_ns=2 * 10**18)
    assert [row["Duration"] for row in rows] == ["45.0 ms", "n/a"]


def test_the_list_and_the_comparison_say_which_steps_their_figures_are_of(
    demo: Write, open_page: Open
) -> None:
    runs = [demo("steady", 100).run_id, demo("slow-loader", 100).run_id]
    assert "last 50 steps" in texts(open_page("runs"))
    assert "of all steady-state steps" in texts(open_page("compare", runs=",".join(runs)))


def test_what_was_not_measured_reads_n_a(demo: Write, open_page: Open) -> None:
    demo("empty")
    row = open_page("runs").dataframe[0].value.iloc[0]
    assert row["Step time"] == row["Peak"] == row["Loss"] == "n/a"


def test_a_damaged_log_is_listed_with_its_sentence(demo: Write, open_page: Open) -> None:
    demo("steady", 50).log.write_bytes(b"garbage")
    app = open_page("runs")
    assert not app.exception
    assert "not a Stepscope log" in app.warning[0].value
    assert len(app.dataframe[0].value) == 1


def test_an_empty_home_leads_to_the_first_run(open_page: Open) -> None:
    app = open_page("runs")
    assert "No run yet" in texts(app)


def test_deleting_asks_first_and_a_refusal_is_a_sentence(demo: Write, open_page: Open) -> None:
    folder = demo("steady", 50)
    summary = supervisor().summary(folder)
    with patch("dashboard.views.runs.st.dataframe", return_value={"selection": {"rows": [0]}}):
        app = open_page("runs")
        assert "Delete demo: steady?" in texts(app)
        with patch.object(supervisor(), "delete", side_effect=StepscopeError("It runs.")):
            app.button(key="delete_run_confirmed").click().run()
        assert "It runs" in app.error[0].value
        assert folder.path.exists()
        app.button(key="delete_run_confirmed").click().run()
    assert not summary.path.exists()


@pytest.mark.parametrize("page", ["live", "memory", "profiler"])
def test_a_run_that_was_deleted_while_it_was_shown_is_said_to_be(
    demo: Write, open_page: Open, page: str
) -> None:
    folder = demo("steady", 50)
    app = open_page(page, run=folder.run_id)
    assert not app.error
    shutil.rmtree(folder.path)
    app.run()
    assert not app.exception
    assert f"The run {folder.run_id} was deleted" in texts(app).replace("\\", "")
    never = open_page(page, run=folder.run_id)
    assert "There is no run" in texts(never)


def _selected(*rows: int) -> Any:
    return patch("dashboard.views.runs.st.dataframe", return_value={"selection": {"rows": list(rows)}})


def test_runs_stay_selected_when_another_one_starts(home: Home, demo: Write, open_page: Open) -> None:
    demo("steady", 50)
    demo("oom", 50)
    with _selected(1) as draw:
        app = open_page("runs")
        chosen = next(text for text in texts(app).splitlines() if text.startswith("demo: "))
        write("one-step", home)
        app.run()
        assert draw.call_args.kwargs["selection_default"] == {"selection": {"rows": [2]}}
        assert chosen == draw.call_args.args[0][2]["Name"]


def _named(app: AppTest) -> list[str]:
    return list(app.dataframe[0].value["Name"])


def test_search_filters_and_order_select_the_rows(demo: Write, open_page: Open) -> None:
    demo("steady", 50)
    demo("one-step")
    change_tags(demo("oom", 50), ["best"])
    app = open_page("runs")
    app.text_input(key="runs_search").set_value("BEST").run()
    assert _named(app) == ["demo: oom"]
    assert "1 of 3 runs" in texts(app)
    app.text_input(key="runs_search").set_value("").run()
    app.multiselect(key="runs_state").set_value(["finished"]).run()
    app.selectbox(key="runs_order").set_value("steps ↑").run()
    assert _named(app) == ["demo: one-step", "demo: steady"]
    app.multiselect(key="runs_tags").set_value(["best"]).run()
    assert "None of 3 runs meets these criteria" in app.info[0].value


def test_the_browser_gets_one_page_of_many_runs(home: Home, open_page: Open) -> None:
    write_many(home, 120)
    app = open_page("runs")
    assert len(_named(app)) == 50
    assert _named(app)[0] == "run-0119"
    app.session_state["runs_page_3"] = 3
    app.run()
    assert _named(app) == [f"run-{number:04}" for number in reversed(range(20))]
    assert "120 runs" in texts(app)


def test_settings_that_differ_are_columns(demo: Write, open_page: Open) -> None:
    demo("steady", 50)
    assert "Steps (setting)" not in open_page("runs").dataframe[0].value
    demo("oom", 50)
    table = open_page("runs").dataframe[0].value.set_index("Name")
    assert dict(table["Steps (setting)"]) == {"demo: oom": "none", "demo: steady": "50"}
    assert list(table["Steps"]) == ["50", "50"]


def test_labels_of_a_run_are_changed(demo: Write, open_page: Open) -> None:
    folder = demo("steady", 50)
    change_tags(folder, ["old"])
    with _selected(0):
        app = open_page("runs")
        app.text_area(key=f"note_{folder.run_id}_0").set_value("keep").run()
        app.multiselect(key=f"tags_{folder.run_id}_0").set_value(["new"]).run()
        app.button(key="save_labels").click().run()
    assert not app.exception
    assert read_labels(folder) == Labels(("new",), "keep")


def test_labels_from_a_shell_stay_when_others_are_saved(demo: Write, open_page: Open) -> None:
    folder = demo("steady", 50)
    with _selected(0):
        app = open_page("runs")
        app.session_state["labels"] = True  # The popover is open.
        app.multiselect(key=f"tags_{folder.run_id}_0").set_value(["page"]).run()
        change_tags(folder, ["shell"])
        set_note(folder, "from a shell")
        app.button(key="save_labels").click().run()
        assert read_labels(folder) == Labels(("page", "shell"), "from a shell")
        assert app.text_area(key=f"note_{folder.run_id}_1").value == "from a shell"
    assert not app.exception


def test_several_runs_are_tagged_and_deleted_but_not_an_active_one(
    demo: Write, home: Home, open_page: Open
) -> None:
    over = [demo("steady", 50), demo("oom", 50)]
    with live_run(home, Settings()) as live, _selected(0, 1, 2):
        app = open_page("runs")
        app.text_input(key="bulk_tag").set_value("x").run()
        app.button(key="add_tag").click().run()
        assert [read_labels(folder).tags for folder in (*over, live.folder)] == [("x",)] * 3
        app.button(key="delete_run_confirmed").click().run()
        assert "so it cannot be deleted; stop it first" in app.error[0].value
        assert [folder.path.exists() for folder in (*over, live.folder)] == [False, False, True]


def test_the_selected_runs_are_exported_as_one_file_or_by_a_command(
    home: Home, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = write_many(home, 60)[::-1]
    monkeypatch.setattr(run_actions, "_MOST_RUNS", 2)
    with _selected(0, 1):
        app = open_page("runs")
        query = "&".join(f"run={folder.run_id}" for folder in newest[:2])
        links = [link.proto.url for link in app.get("link_button")]
        assert f"download/tables?format=csv&{query}" in links
        app.checkbox(key="all_listed").set_value(True).run()
        assert any(code.value.startswith("stepscope export 2017") for code in app.code)
        assert "The first 50 of 60 runs" in texts(app)


def test_all_listed_runs_are_tagged_not_only_those_of_the_page(home: Home, open_page: Open) -> None:
    folders = write_many(home, 60)
    with _selected(0, 1):
        app = open_page("runs")
        app.checkbox(key="all_listed").set_value(True).run()
        app.text_input(key="bulk_tag").set_value("x").run()
        app.button(key="add_tag").click().run()
    assert all(read_labels(folder).tags == ("x",) for folder in folders)


def test_a_setting_without_an_effect_on_the_model_is_no_difference(home: Home, open_page: Open) -> None:
    for values in ({"sequence_length": 32}, {"sequence_length": 64, "batch_size": 8}):
        home.create(None, resolve({"model": "mlp", **values}), 1)
    columns = list(open_page("runs").dataframe[0].value.columns)
    assert "Batch size" in columns
    assert "Sequence length" not in columns
    assert columns.index("Batch size") > columns.index("Duration")


def test_two_runs_are_laid_over_each_other(demo: Write, open_page: Open) -> None:
    demo("steady", 50)
    demo("one-step")
    demo("empty")
    with (
        patch("dashboard.views.runs.st.dataframe", return_value={"selection": {"rows": [0, 1, 2]}}),
        patch("dashboard.canvas.live_plotly") as draw,
    ):
        app = open_page("runs")
    assert not app.exception
    names = {trace["name"] for trace in draw.call_args.args[0]["data"]}
    assert names == {"demo: steady", "demo: one-step"}


def test_the_system_page_lists_devices_checks_and_advice(open_page: Open) -> None:
    app = open_page("system")
    assert not app.exception
    text = texts(app)
    for expected in ("NVIDIA H200", "Some CPU", "driver mismatch", "Reboot the machine", "16.0 GiB"):
        assert expected in text.replace("\\", "")


def test_the_system_page_waits_without_blocking(open_page: Open, fake_doctor_run: FakeDoctorRun) -> None:
    fake_doctor_run.report, fake_doctor_run.is_done = None, False
    app = open_page("system")
    assert any("Checking this machine" in info.value for info in app.info)


def test_a_failed_examination_is_one_sentence(open_page: Open, fake_doctor_run: FakeDoctorRun) -> None:
    fake_doctor_run.report, fake_doctor_run.problem = None, "The doctor gave no answer."
    assert "no answer" in open_page("system").error[0].value


@pytest.mark.long
def test_the_real_doctor_runs_in_a_child_process() -> None:
    doctor = DoctorRun()
    assert doctor.wait(60)
    assert doctor.problem is None
    assert doctor.report is not None
    assert any(device.facts.torch_name == "cpu" for device in doctor.report.devices)


def test_a_report_that_is_none_is_refused() -> None:
    with pytest.raises(StepscopeError):
        from_json("Traceback")

"""The Runs page lists, and the System page tells, whatever state things are in."""

import shutil
from unittest.mock import patch

import pytest

from dashboard.data.doctor import DoctorRun
from dashboard.data.runs import supervisor
from harness.demo.scenarios import SCENARIOS
from harness.device.doctor.report import from_json
from harness.errors import StepscopeError
from tests.app.conftest import FakeDoctorRun, Open, Write, texts


def test_every_scenario_is_a_row(demo: Write, open_page: Open) -> None:
    for scenario in SCENARIOS:
        demo(scenario, 50 if scenario != "empty" else None)
    app = open_page("runs")
    assert not app.exception
    table = app.dataframe[0].value
    assert set(table["Name"]) == {f"demo: {scenario}" for scenario in SCENARIOS}
    assert all("simulated" in state for state in table["State"])


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
    shown = texts(app)
    for expected in ("NVIDIA H200", "Some CPU", "driver mismatch", "Reboot the machine", "16.0 GiB"):
        assert expected in shown.replace("\\", "")


def test_the_system_page_waits_without_blocking(open_page: Open, fake_doctor_run: FakeDoctorRun) -> None:
    fake_doctor_run.report, fake_doctor_run.is_done = None, False
    app = open_page("system")
    assert "Checking this machine" in app.info[0].value


def test_a_failed_examination_is_one_sentence(open_page: Open, fake_doctor_run: FakeDoctorRun) -> None:
    fake_doctor_run.report, fake_doctor_run.problem = None, "The doctor gave no answer."
    assert "no answer" in open_page("system").error[0].value


def test_the_real_doctor_runs_in_a_child_process() -> None:
    doctor = DoctorRun()
    assert doctor.wait(60)
    assert doctor.problem is None
    assert doctor.report is not None
    assert any(device.facts.torch_name == "cpu" for device in doctor.report.devices)


def test_a_report_that_is_none_is_refused() -> None:
    with pytest.raises(StepscopeError):
        from_json("Traceback")

"""The form for a new run: what it offers, what it refuses, and that many clicks start one run."""

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard import new_run
from dashboard.data import runs
from harness.catalog import MODELS
from harness.cli import build_parser
from harness.cli.arguments import settings_of
from harness.errors import SettingError
from harness.records.run import AmpMode
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.settings.spec import from_json
from harness.store.home import Home
from harness.store.own_models import OwnEntry, add_own_model
from harness.supervisor import Supervisor
from tests.app.conftest import FakeDoctorRun, Open, texts

SCRIPTS = Path(__file__).parents[1] / "scripts"


class NoProcess:
    """Stands in for a training process that does nothing and never ends."""

    pid = 2**22 + 1
    _never = threading.Event()

    def poll(self) -> int | None:
        return None

    def wait(self) -> int:
        self._never.wait()
        return 0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, home: Home) -> list[list[str]]:
    """The commands of the processes that were started; none of them is real."""
    commands: list[list[str]] = []

    def spawn(command: list[str], environ: Mapping[str, str], output: Path) -> NoProcess:
        commands.append(command)
        return NoProcess()

    monkeypatch.setattr(
        runs,
        "Supervisor",
        lambda home, is_read_only: Supervisor(home, spawn=spawn, is_read_only=is_read_only),
    )
    return commands


@pytest.fixture
def form(open_page: Open, started: list[list[str]]) -> AppTest:
    return open_page("new").selectbox(key="new_model").set_value("cnn").run()


def _start(form: AppTest) -> AppTest:
    return form.button(key="start").click().run()


def _asked(home: Home) -> Settings:
    (folder,) = home.runs()
    return from_json(folder.request().settings_json)


def test_start_begins_the_run_the_form_describes_and_shows_it(
    form: AppTest, home: Home, started: list[list[str]]
) -> None:
    form.number_input(key="new_batch_size_cnn_laptop").set_value(48).run()
    form.text_input(key="new_name").set_value("mine").run()
    app = _start(form)
    assert not app.exception
    assert len(started) == 1
    assert _asked(home) == resolve({"model": "cnn", "batch_size": 48})
    assert home.runs()[0].request().name == "mine"
    assert app.query_params["run"] == home.runs()[0].run_id
    assert "Waiting for the first step" in app.info[0].value


def test_ten_clicks_start_one_run(
    form: AppTest, home: Home, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stay(*page: object, **more: object) -> None:
        """The page does not change, as when clicks come in faster than it can."""

    monkeypatch.setattr("dashboard.views.new.st.switch_page", stay)
    for _ in range(10):
        _start(form).run()
    assert len(home.runs()) == len(started) == 1


@pytest.mark.parametrize("model", [key for key, spec in MODELS.items() if spec.missing is None])
def test_every_model_has_a_form_without_an_exception(model: str, form: AppTest) -> None:
    form.selectbox(key="new_model").set_value(model).run()
    assert not form.exception
    assert f"stepscope run {model}" in texts(form)


def test_a_registered_model_is_offered_with_its_dataset_and_starts(
    home: Home, open_page: Open, started: list[list[str]]
) -> None:
    entry = OwnEntry(f"{SCRIPTS}/own_model.py:build", f"{SCRIPTS}/own_data.py:dataset")
    add_own_model(home, entry)
    form = open_page("new")
    form.selectbox(key="new_model").set_value(entry.model).run()
    assert f"stepscope run {entry.model} --data {entry.data}" in texts(form)
    app = _start(form)
    assert not app.exception
    assert (_asked(home).model, _asked(home).data) == entry


def test_a_model_of_a_file_that_is_not_registered_is_refused(form: AppTest) -> None:
    with pytest.raises(SettingError, match="is not offered here; register it"):
        new_run.validated_settings({"model": f"{SCRIPTS}/own_model.py:build", "data": "digits"})
    with pytest.raises(SettingError, match="is not offered for cnn"):
        new_run.validated_settings({"model": "cnn", "data": f"{SCRIPTS}/own_data.py:dataset"})


def test_a_preset_brings_its_own_settings(form: AppTest, home: Home) -> None:
    form.button_group(key="new_preset_cnn").set_value("workstation").run()
    preset = MODELS["cnn"].preset("workstation")
    batch = form.number_input(key="new_batch_size_cnn_workstation").value
    assert batch == preset.settings["batch_size"]
    assert "--preset workstation" in texts(form)


def test_the_default_size_follows_the_device_until_another_is_selected(open_page: Open) -> None:
    app, size = open_page("new"), "new_preset_transformer"
    assert app.button_group(key=size).value == "workstation"
    app.selectbox(key="new_device").set_value("cpu").run()
    assert app.button_group(key=size).value == "laptop"
    app.button_group(key=size).set_value("h200").run()
    app.selectbox(key="new_device").set_value("auto").run()
    assert app.button_group(key=size).value == "h200"


def test_the_form_begins_with_its_values_also_in_a_browser_that_misses_the_first_run(
    open_page: Open, fake_doctor_run: FakeDoctorRun
) -> None:
    app = open_page("new").run()
    for key in ("new_model", "new_data_transformer_workstation"):
        box = app.selectbox(key=key)
        assert not box.proto.set_value
        assert box.proto.default == box.index
    size = app.button_group(key="new_preset_transformer")
    assert [size.options[at] for at in size.proto.default] == [size.options[size.indices[0]]]


def test_a_refusal_is_one_sentence_and_the_form_stays(form: AppTest, home: Home) -> None:
    form.selectbox(key="new_data_cnn_laptop").set_value("images").run()
    form.text_input(key="new_data_path_cnn_laptop").set_value("/nowhere/at/all").run()
    app = _start(form)
    assert not app.exception
    assert "no file or folder" in app.error[0].value
    assert not home.runs()
    assert not app.button(key="start").disabled


def test_a_name_that_is_taken_is_refused(form: AppTest, home: Home) -> None:
    home.create("taken", Settings(), 1)
    form.text_input(key="new_name").set_value("taken").run()
    assert "already a run named" in _start(form).error[0].value


def test_what_the_device_cannot_do_is_disabled_with_the_reason(form: AppTest, home: Home) -> None:
    form.selectbox(key="new_device").set_value("cpu").run()
    pinned = form.toggle(key="new_pin_memory_cnn_laptop_unavailable")
    assert pinned.disabled
    assert "Some CPU" in str(pinned.help)
    assert form.button(key="no_fp16").disabled
    assert "Some CPU" in str(form.button(key="no_fp16").help)
    assert "--device cpu" in texts(form)


def test_a_preset_made_for_a_gpu_still_starts_on_the_cpu(form: AppTest, home: Home) -> None:
    form.button_group(key="new_preset_cnn").set_value("h200").run()
    form.selectbox(key="new_device").set_value("cpu").run()
    app = _start(form)
    assert not app.error
    settings = _asked(home)
    assert not settings.pin_memory
    assert settings.amp in (AmpMode.OFF, AmpMode.BF16)


def test_the_form_is_shown_while_the_machine_is_checked(
    open_page: Open, fake_doctor_run: FakeDoctorRun
) -> None:
    fake_doctor_run.report, fake_doctor_run.is_done = None, False
    form = open_page("new")
    assert not form.exception
    assert "Checking this machine" in texts(form)
    assert "checking this machine" in texts(form)
    assert form.selectbox(key="new_device").value == "auto"


def test_the_doctors_failure_does_not_block_the_form(
    open_page: Open, fake_doctor_run: FakeDoctorRun, home: Home, started: list[list[str]]
) -> None:
    fake_doctor_run.report, fake_doctor_run.problem = None, "The doctor failed: no torch."
    form = open_page("new")
    assert "The doctor failed" in texts(form)
    assert "checking this machine" not in texts(form)
    assert not _start(form).exception
    assert len(started) == 1


def test_the_shell_command_starts_the_same_run(form: AppTest) -> None:
    form.number_input(key="new_batch_size_cnn_laptop").set_value(48).run()
    form.toggle(key="new_device_metrics_cnn_laptop").set_value(False).run()
    form.number_input(key="new_max_steps_cnn_laptop").set_value(100).run()
    form.number_input(key="new_learning_rate_cnn_laptop").set_value(0.00012345678).run()
    words = form.code[0].value.split()[1:]
    changed = {"batch_size": 48, "device_metrics": False, "max_steps": 100, "learning_rate": 0.00012345678}
    expected = resolve({"model": "cnn", **changed})
    assert settings_of(build_parser().parse_args(words), {}) == expected

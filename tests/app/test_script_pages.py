"""Runs of a person's script on the pages: their own settings, their origin, and what they do not have."""

import contextlib
import json
import math
import sqlite3
from unittest.mock import patch

import pytest

from dashboard.wire import unpack
from harness.attach.declaration import declare
from harness.demo.machine import FACTS
from harness.records.floats import encode_float
from harness.records.run import DeviceKind, EventKind, EventRow, SettingsRow, Severity
from harness.records.script import DeclaredSetting, ScalarRow, SettingKind, UnavailableSettingRow
from harness.settings.spec import SPECS
from harness.store.home import Home
from tests.app.conftest import Open, setting, texts
from tests.script_factories import SCRIPT_SETTINGS, script_run
from tests.store_factories import a_device_sample

_DROPOUT = DeclaredSetting("dropout", SettingKind.FLOAT, 0.1, 0.0, 0.9, (), "Dropout of the head")


def test_the_bar_has_only_settings_of_the_script(home: Home, open_page: Open) -> None:
    script_run(home)
    app = open_page()
    assert not app.exception
    assert setting(app.button_group, "amp").value == "off"
    with pytest.raises(StopIteration):
        setting(app.button_group, "batch_size")
    widgets = [*app.selectbox, *app.number_input, *app.toggle]
    labels = {str(getattr(widget, "label", None)) for widget in widgets}
    assert SPECS["matmul_precision"].label in labels
    absent = {"Pinned", *(SPECS[name].label for name in ("num_workers", "optimizer_impl", "compile"))}
    assert not labels & absent


def test_the_batch_sizes_offered_are_those_around_the_first_one_of_the_script(
    home: Home, open_page: Open
) -> None:
    versions = enumerate((16, 64), start=2)
    rows = [
        SettingsRow(number, 2 * number, 0, json.dumps({**SCRIPT_SETTINGS, "batch_size": size}), "{}", None)
        for number, size in versions
    ]
    script_run(home, rows=rows)
    sizes = setting(open_page().button_group, "batch_size")
    assert (sizes.options, sizes.value) == (["bs 8", "bs 16", "bs 32", "bs 64"], 64)


def test_the_settings_that_a_script_declared_have_widgets(home: Home, open_page: Open) -> None:
    script_run(home, {**SCRIPT_SETTINGS, "dropout": 0.3}, [_DROPOUT.to_row()])
    app = open_page()
    assert not app.exception
    (field,) = [field for field in app.number_input if field.label == "Dropout of the head"]
    assert field.value == 0.3
    assert (field.min, field.max) == (0.0, 0.9)


@pytest.mark.parametrize("value", [2**53, -(2**64)])
def test_a_declared_number_that_no_field_can_have_is_shown(home: Home, open_page: Open, value: int) -> None:
    declared = declare("torch_seed", value, (-(2**64), 2**64), None, None)
    script_run(home, {**SCRIPT_SETTINGS, "torch_seed": value}, [declared.to_row()])
    app = open_page()
    assert not app.exception
    (field,) = [field for field in app.text_input if field.label == "torch_seed"]
    assert (field.value, field.disabled) == (str(value), True)


def test_a_setting_that_the_script_cannot_change_has_its_reason(home: Home, open_page: Open) -> None:
    row = UnavailableSettingRow("num_workers", "The loader has a sampler of its own.")
    script_run(home, rows=[row])
    text = texts(open_page())
    assert "Loader workers" in text
    assert "The loader has a sampler of its own" in text.replace("\\", "")


def test_the_details_name_command_folder_commit_and_versions_once_opened(home: Home, open_page: Open) -> None:
    script_run(home)
    app = open_page()
    assert "/home/me/project" not in texts(app)
    app.session_state["details"] = True
    text = texts(app.run())
    for part in (
        "stepscope run train.py --epochs 3 'two words'",
        "/home/me/project",
        "0123456789ab, with uncommitted changes",
        "Python 3.12.1, torch 2.9.0",
    ):
        assert part in text
    assert "output went to its own terminal" in text
    assert "cnn" not in text


def test_the_list_of_runs_shows_the_script_as_model_and_its_origin(home: Home, open_page: Open) -> None:
    script_run(home)
    app = open_page("runs")
    assert list(app.dataframe[0].value["Model"]) == ["train.py"]
    with patch("dashboard.views.runs.st.dataframe", return_value={"selection": {"rows": [0]}}):
        text = texts(open_page("runs"))
    assert "stepscope run train.py --epochs 3 'two words'" in text
    assert "0123456789ab, with uncommitted changes" in text


def test_memory_of_a_script_is_measured_and_not_predicted(home: Home, open_page: Open) -> None:
    script_run(home)
    app = open_page("memory")
    assert not app.exception
    assert "n/a: a script can do anything between two steps" in texts(app)


def test_the_profiler_page_opens_for_a_script(home: Home, open_page: Open) -> None:
    script_run(home, step_count=200)
    assert not open_page("profiler").exception


def test_the_empty_page_and_the_form_have_the_command_for_a_script(home: Home, open_page: Open) -> None:
    for page in ("live", "new"):
        assert "stepscope run train.py --its --own arguments" in texts(open_page(page))


def test_scalars_of_the_script_are_selected_for_the_chart(home: Home, open_page: Open) -> None:
    names = ("accuracy", "loss", "lr", "precision", "recall")
    script_run(home, rows=[ScalarRow(step, name, step, 0.5, 0) for step in range(1, 61) for name in names])
    app = open_page()
    assert not app.exception
    assert app.multiselect[0].value == ["accuracy", "lr", "precision"]
    app.run()
    # What the browser selects when it draws the widget, which it does once its popover opens.
    assert list(app.multiselect[0].proto.default) == [0, 2, 3]
    app.multiselect[0].set_value(["recall"]).run()
    assert not app.exception
    assert app.multiselect[0].value == ["recall"]
    assert [series.name for series in app.session_state["tick"].read.scalars] == ["recall"]


def test_steps_between_two_samples_of_the_device_do_not_deny_its_utilization(
    home: Home, open_page: Open
) -> None:
    script_run(home, rows=[a_device_sample(1, 0), a_device_sample(2, 61)])
    app = open_page()
    assert not app.exception
    chart = unpack(app.session_state["tick"].figure)
    assert "n/a: no sample within these steps; one is taken per second" in [
        note["text"] for note in chart["layout"]["annotations"]
    ]


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (1, "CPU utilization needs two samples; one is taken per second"),
        (2, "this system does not report CPU utilization"),
    ],
)
def test_a_run_of_less_than_a_second_does_not_deny_the_utilization_of_this_system(
    samples: int, reason: str, home: Home, open_page: Open
) -> None:
    rows = [a_device_sample(seq, 1, util_pct=None) for seq in range(samples)]
    script_run(home, rows=rows, device=FACTS._replace(kind=DeviceKind.CPU, uuid=None))
    chart = unpack(open_page().session_state["tick"].figure)
    assert f"n/a: {reason}" in [note["text"] for note in chart["layout"]["annotations"]]


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (None, "no loss was recorded; run.log(loss=…) records it"),
        (math.nan, "no finite loss"),
    ],
)
def test_a_script_without_a_loss_reads_how_to_record_one(
    loss: float | None, reason: str, home: Home, open_page: Open
) -> None:
    folder = script_run(home)
    with contextlib.closing(sqlite3.connect(folder.log)) as connection, connection:
        connection.execute("UPDATE steps SET loss = ?, loss_state = ?", encode_float(loss))
    app = open_page()
    assert not app.exception
    chart = unpack(app.session_state["tick"].figure)
    assert f"n/a: {reason}" in [note["text"] for note in chart["layout"]["annotations"]]


def test_a_change_that_nobody_requested_stands_with_its_reason(home: Home, open_page: Open) -> None:
    off = {"amp": "off"}
    reason = "The model failed under mixed precision: AMP bf16 → off."
    version = SettingsRow(9, 3, 10, json.dumps({**SCRIPT_SETTINGS, **off}), json.dumps(off), None)
    event = EventRow(
        10, 3, EventKind.SETTING, Severity.WARNING, "AMP off", reason, json.dumps({"version": 9}), None
    )
    script_run(home, rows=[version, event])
    app = open_page()
    assert not app.exception
    assert reason in [text.value for text in app.text]
    assert "changed at step 3" in texts(app)


def test_settings_that_were_replaced_before_their_first_step_are_no_range_of_steps(
    home: Home, open_page: Open
) -> None:
    values = json.dumps(SCRIPT_SETTINGS)
    rows = [SettingsRow(number, step, 0, values, "{}", None) for number, step in ((2, 1), (3, 1), (4, 3))]
    app = open_page("profiler", run=script_run(home, rows=rows).run_id)
    assert not app.exception
    ranges = [option for option in app.selectbox(key="timing_range").options if "settings" in option]
    assert [option.partition(":")[0] for option in ranges] == ["settings 3", "settings 4"]

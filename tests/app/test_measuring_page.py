"""Measured effects on the pages: the form, the progress, the results, and advice that is tried."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.form import alternative, spec_of_declared
from harness.attach.declaration import declare
from harness.records.measurement import (
    Arm,
    MeasurementBlockRow,
    MeasurementRow,
    MeasureRequest,
)
from harness.records.run import CommandKind, CommandState, RunState, StepRow
from harness.settings import Settings
from harness.settings.resolve import resolve
from harness.store.home import Home
from tests.app.conftest import Open, setting, texts
from tests.app.live_factories import LiveRun, live_run
from tests.measuring_factories import write_measured_log
from tests.store_factories import a_run
from tests.timing_factories import some_device_steps


@pytest.fixture
def live(home: Home) -> Iterator[LiveRun]:
    with live_run(home, Settings(batch_size=32)) as run:
        yield run


def open_form(open_page: Open, live: LiveRun, name: str = "amp") -> AppTest:
    app = open_page(run=live.folder.run_id)
    app.button(key=f"measure_{name}_bar").click().run()
    return app


def a_measured_run(home: Home, ratio: float, **more: Any) -> str:
    folder = home.create("measured", resolve({"model": "mlp"}), 1)
    run = a_run(folder.run_id, "measured")._replace(state=RunState.FINISHED, ended_unix_ns=2)
    write_measured_log(folder.log, ratio, run=run, **more)
    return folder.run_id


@pytest.mark.parametrize(("button", "is_kept"), [("measure", False), ("measure_try", True)])
def test_a_setting_is_measured_from_its_button(
    live: LiveRun, open_page: Open, button: str, is_kept: bool
) -> None:
    app = open_form(open_page, live)
    assert app.selectbox(key="measure_value_amp").value == "bf16"
    app.button(key=button).click().run()
    assert not app.exception
    request = MeasureRequest({"amp": "bf16"}, keep_if_better=is_kept)
    assert live.requests == [(CommandKind.MEASURE, request._asdict())]
    assert not [one for one in app.button if one.key == "measure"]


def test_the_form_proposes_the_double_and_takes_another_value(live: LiveRun, open_page: Open) -> None:
    app = open_form(open_page, live, "batch_size")
    field = app.number_input(key="measure_value_batch_size")
    assert field.value == 64
    field.set_value(48).run()
    app.number_input(key="measure_pairs").set_value(12).run()
    app.button(key="measure").click().run()
    assert live.requests == [(CommandKind.MEASURE, MeasureRequest({"batch_size": 48}, 12)._asdict())]


@pytest.mark.parametrize(
    ("value", "bounds", "proposed"),
    [
        (64, None, 128),
        (2**53, None, 2**53 - 1),
        (-4, (-5, 0), -5),
        (10, (0, 10), 5),
        (0, (0.0, 0.5), 0.5),
        (1e308, None, sys.float_info.max),
    ],
)
def test_the_proposed_number_is_one_that_the_setting_and_its_field_can_have(
    value: float, bounds: tuple[float, float] | None, proposed: float
) -> None:
    spec = spec_of_declared(declare("knob", value, bounds, None, None))
    assert alternative(spec, value) == proposed


def test_the_form_is_closed_without_a_request(live: LiveRun, open_page: Open) -> None:
    app = open_form(open_page, live)
    app.button(key="measure_close").click().run()
    assert not [one for one in app.button if one.key == "measure"]
    assert live.requests == []


def test_a_rejected_measurement_says_why(live: LiveRun, open_page: Open) -> None:
    app = open_form(open_page, live)
    app.button(key="measure").click().run()
    live.answer(CommandState.REJECTED, "Another measurement is in progress.")
    app.run()
    assert "Another measurement is in progress." in texts(app)


def test_progress_has_a_time_to_the_end_and_a_button_that_ends_it(live: LiveRun, open_page: Open) -> None:
    plan = MeasurementRow(1, 10, 0, "m1", "dashboard", '{"amp": "off"}', '{"amp": "bf16"}', 16, 0)
    blocks = [
        MeasurementBlockRow(1, 1, position, arm, 10 * position, 10 * position + 9, 0, 600_000_000 * position,
                            position, None, None)
        for position, arm in ((1, Arm.A), (2, Arm.B))
    ]  # fmt: skip
    live.put(plan, *blocks)
    app = open_page(run=live.folder.run_id)
    (progress,) = app.get("progress")
    assert progress.proto.text.replace("\\", "") == (
        "Measuring AMP off → bf16 · pair 1 of 16 · about 18 s left"
    )
    assert setting(app.button_group, "amp").value == "off"
    app.button(key="measure_end").click().run()
    assert live.requests == [(CommandKind.END_MEASUREMENT, {})]


def test_a_result_stands_with_its_verdict_and_every_figure(home: Home, open_page: Open) -> None:
    app = open_page(run=a_measured_run(home, 0.8))
    assert not app.exception
    assert "faster" in texts(app)
    (frame,) = [one.value for one in app.dataframe if "verdict" in one.value]
    assert list(frame["figure"])[:2] == ["undisturbed step", "samples/s, all steps"]
    assert list(frame["verdict"])[:2] == ["faster", "faster"]
    assert "Not measured here: energy per sample" in texts(app).replace("\\", "")


def test_blocks_are_no_changes_of_settings(home: Home, open_page: Open) -> None:
    app = open_page(run=a_measured_run(home, 0.8))
    assert "Changes" not in [header.value for header in app.header]


def test_a_measurement_that_ended_early_says_why(home: Home, open_page: Open) -> None:
    run = a_measured_run(home, 0.8, end=None)
    assert "The run ended in the middle." in texts(open_page(run=run)).replace("\\", "")


def waiting_steps() -> list[StepRow]:
    """Steps on a GPU that waits for data most of the time."""
    rows = some_device_steps(
        700, gap=5.0, parts=(0.1, 3.0, 6.0, 0.5), wait=6.0, forward=2.0, backward=5.0, rest=0.6
    )
    return [row for row in rows if row.step >= 40]


def test_advice_is_tried_with_one_button(live: LiveRun, open_page: Open) -> None:
    live.fed(waiting_steps(), lambda _: False)
    app = open_page("profiler", run=live.folder.run_id)
    button = next(one for one in app.button if str(one.key).startswith("try_input_bound_"))
    button.click().run()
    ((kind, payload),) = live.requests
    assert kind == CommandKind.MEASURE
    assert payload["keep_if_better"] is True
    assert isinstance(payload["settings"], dict)
    assert "num_workers" in payload["settings"]


def test_the_outcome_of_advice_that_was_tried_stands_with_it(home: Home, open_page: Open) -> None:
    run = a_measured_run(home, 0.8, source="advice", keeps_if_better=True)
    text = texts(open_page("profiler", run=run)).replace("\\", "")
    assert "Measured AMP off → bf16. Faster: undisturbed step" in text
    assert "The change was not kept." in text

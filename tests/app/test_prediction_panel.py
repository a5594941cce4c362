"""Will it fit? What the panel beside Start says, and what its buttons do to the form."""

import pytest
from streamlit.testing.v1 import AppTest

from harness.predict.answer import Advice, Impossible, PartBytes, Prediction, Remedy
from harness.predict.error_band import settled_peak
from harness.records.memory import MemoryCategory
from harness.records.run import DeviceKind, StepFlag, StepRow
from harness.settings import Settings
from harness.store.home import Home
from tests.app.conftest import CPU, FakePredictor, Open, Write, texts
from tests.app.live_factories import live_run
from tests.store_factories import a_step

GIB = 2**30


def a_prediction(peak_gib: float, context_bytes: int | None = GIB // 2) -> Prediction:
    peak = int(peak_gib * GIB)
    return Prediction(
        target=DeviceKind.CPU,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=None,
        least_reserved_bytes=None,
        parts=(
            PartBytes(MemoryCategory.WEIGHTS, peak // 4),
            PartBytes(MemoryCategory.ACTIVATIONS, peak - peak // 4),
        ),
        phase="backward",
        static_bytes=peak // 4,
        context_bytes=context_bytes,
        context_note="The context is Python and torch.",
        modules=(),
        notes=("Scratch is an estimate.",),
    )


def some_advice(fits: bool | None, largest: int | None = 24) -> Advice:
    halved = Remedy(
        "batch 16, accumulated 2 times", {"batch_size": 16, "grad_accumulation": 2}, GIB, GIB, True
    )
    mixed = Remedy("mixed precision (bf16)", {"amp": "bf16"}, 2 * GIB, GIB // 2, False)
    return Advice(CPU.memory_bytes, "the 16.0 GiB of Some CPU", fits, largest, (halved, mixed))


@pytest.fixture
def form(open_page: Open, fake_predictor: FakePredictor) -> AppTest:
    fake_predictor.answer, fake_predictor.advice = a_prediction(20), some_advice(fits=False)
    app = open_page("new").selectbox(key="new_model").set_value("cnn").run()
    return app.selectbox(key="new_device").set_value("cpu").run()


def test_what_does_not_fit_is_said_with_its_parts_and_what_would_help(form: AppTest) -> None:
    text = texts(form)
    assert not form.exception
    assert "does not fit" in text
    assert "20.0 GiB" in text
    assert "Largest batch size that fits: **24**" in text
    assert "Batch 16, accumulated 2 times" in text
    assert "Python and torch" in text


@pytest.mark.parametrize(
    ("peak_gib", "word"), [(15.4, "fits"), (15.6, "does not fit"), (20.0, "does not fit")]
)
def test_the_verdict_holds_the_context_against_the_limit_too(
    peak_gib: float, word: str, open_page: Open, fake_predictor: FakePredictor
) -> None:
    fake_predictor.answer = a_prediction(peak_gib)
    app = open_page("new").selectbox(key="new_device").set_value("cpu").run()
    assert f"{word}]" in texts(app)


def test_use_it_puts_the_change_into_the_form(form: AppTest) -> None:
    form.button(key="use_remedy_0").click().run()
    assert form.number_input(key="new_batch_size_cnn_laptop").value == 16
    assert form.number_input(key="new_grad_accumulation_cnn_laptop").value == 2
    assert "--batch-size 16 --grad-accumulation 2" in texts(form)


def test_each_button_says_what_it_puts_into_the_form(form: AppTest) -> None:
    labels = [button.label for button in form.button if (button.key or "").startswith("use_")]
    assert labels[:3] == ["Use batch 24", "Use batch 16, accumulation 2", "Use AMP bf16"]
    assert len(set(labels)) == len(labels)


def test_the_largest_batch_can_be_used(form: AppTest) -> None:
    form.button(key="use_largest_batch").click().run()
    assert form.number_input(key="new_batch_size_cnn_laptop").value == 24


def test_mixed_precision_can_be_used(form: AppTest) -> None:
    form.button(key="use_remedy_1").click().run()
    assert not form.exception
    assert "--amp bf16" in texts(form)


def test_without_a_batch_that_fits_it_says_so(open_page: Open, fake_predictor: FakePredictor) -> None:
    fake_predictor.answer, fake_predictor.advice = a_prediction(900), some_advice(fits=False, largest=0)
    app = open_page("new").selectbox(key="new_device").set_value("cpu").run()
    assert "Not even a batch size of **1** fits" in texts(app)


def test_a_cap_too_small_for_what_the_cpu_must_leave_is_explained(
    open_page: Open, fake_predictor: FakePredictor
) -> None:
    fake_predictor.answer, fake_predictor.advice = a_prediction(0.001), some_advice(fits=False, largest=0)
    app = open_page("new").selectbox(key="new_device").set_value("cpu").run()
    assert "cap on the CPU must leave" not in texts(app)
    cap = next(field for field in app.number_input if field.label.startswith("Memory cap"))
    cap.set_value(0.05).run()
    assert not app.exception
    assert "a cap on the CPU must leave 128 MiB beyond the baseline" in texts(app)


def test_what_cannot_be_predicted_says_why(open_page: Open, fake_predictor: FakePredictor) -> None:
    fake_predictor.answer = Impossible("The model looks at its data.")
    app = open_page("new").selectbox(key="new_device").set_value("cpu").run()
    assert "cannot be predicted" in texts(app)
    assert "The model looks at its data" in texts(app).replace("\\", "")


def test_while_it_is_computed_the_form_can_be_used(open_page: Open, fake_predictor: FakePredictor) -> None:
    app = open_page("new").selectbox(key="new_device").set_value("cpu").run()
    assert "predicting…" in texts(app)
    assert not app.button(key="start").disabled


def test_a_form_that_cannot_be_started_has_no_prediction(form: AppTest) -> None:
    form.selectbox(key="new_data_cnn_laptop").set_value("images").run()
    assert "Will it fit?" not in texts(form)


def test_for_an_active_run_a_prediction_is_computed_on_request_only(
    home: Home, open_page: Open, fake_predictor: FakePredictor
) -> None:
    fake_predictor.answer, fake_predictor.advice = a_prediction(20), some_advice(fits=False)
    with live_run(home, Settings()) as run:
        app = open_page("memory", run=run.folder.run_id)
        assert "No prediction for these settings yet" in texts(app)
        app.button(key="predict").click().run()
        text = texts(app)
    assert not app.exception
    assert "**20.0 GiB** at the peak" in text
    assert "measured" in text
    assert "Batch 16, accumulated 2 times" in text
    assert not [button for button in app.button if (button.key or "").startswith("use_")]


def test_a_simulated_run_is_not_held_against_a_prediction(demo: Write, open_page: Open) -> None:
    assert "Predicted and measured" not in texts(open_page("memory", run=demo("steady", 200).run_id))


def test_the_measured_peak_is_of_settled_steps_under_the_settings_in_effect() -> None:
    def step(peak: int, version: int = 2, flags: int = 0) -> StepRow:
        return a_step(1)._replace(peak_allocated_bytes=peak, settings_version=version, flags=flags)

    steps = [step(9, version=1), step(8, flags=StepFlag.TRANSITION), step(3), step(5)]
    assert settled_peak(steps, 2) == 5
    assert settled_peak(steps, 3) is None

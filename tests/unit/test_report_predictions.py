"""An out-of-memory report quotes the predictions that the home keeps, and computes none."""

from pathlib import Path

import pytest

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import OomReport
from harness.demo.machine import FACTS
from harness.predict.answer import Prediction, Target
from harness.predict.cache import prediction_cache
from harness.predict.question import Question
from harness.predict.report_predictions import add_predictions
from harness.records.run import DeviceKind, SettingsRow
from harness.settings.resolve import resolve
from harness.settings.spec import change
from tests.oom_factories import some_facts

GIB = 2**30
SETTINGS = resolve({"model": "transformer", "batch_size": 64})
HISTORY = [SettingsRow(1, 1, 0, SETTINGS.model_dump_json(), "{}", None)]


def a_report(batch_size: int = 64) -> OomReport:
    facts = some_facts()._replace(batch_size=batch_size, grad_accumulation=1, amp="off", checkpointing=False)
    return explain(facts, outcome="The run ended.")


def keep(home: Path, peak_bytes: int, **changes: object) -> None:
    prediction = Prediction(
        target=DeviceKind.CUDA,
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=peak_bytes,
        least_reserved_bytes=peak_bytes,
        parts=(),
        phase="backward",
        static_bytes=0,
        context_bytes=None,
        context_note="",
        modules=(),
        notes=(),
    )
    question = Question.of(change(SETTINGS, changes), Target.of(FACTS))
    prediction_cache(home).put(question.key, prediction)


def test_a_kept_prediction_is_quoted_with_its_saving(tmp_path: Path) -> None:
    keep(tmp_path, 40 * GIB)
    keep(tmp_path, 30 * GIB, amp="bf16")
    message = add_predictions(a_report(), HISTORY, FACTS, tmp_path)
    texts = [one.text for one in message.counterfactuals]
    assert "mixed precision (bf16) would save 10.0 GiB: a peak of 30.0 GiB." in texts
    assert message.outcome == "The run ended."


@pytest.mark.parametrize("peak_gib", [40, 50])
def test_what_would_save_nothing_is_not_mentioned(tmp_path: Path, peak_gib: int) -> None:
    keep(tmp_path, 40 * GIB)
    keep(tmp_path, peak_gib * GIB, amp="bf16")
    assert add_predictions(a_report(), HISTORY, FACTS, tmp_path) == a_report()


def test_without_a_prediction_the_report_stays_as_it_was_written(tmp_path: Path) -> None:
    keep(tmp_path, 30 * GIB, amp="bf16")
    assert add_predictions(a_report(), HISTORY, FACTS, tmp_path) == a_report()
    assert add_predictions(a_report(), HISTORY, None, tmp_path) == a_report()


def test_predictions_for_other_settings_are_not_quoted(tmp_path: Path) -> None:
    keep(tmp_path, 40 * GIB)
    keep(tmp_path, 30 * GIB, amp="bf16")
    assert add_predictions(a_report(batch_size=32), HISTORY, FACTS, tmp_path) == a_report(batch_size=32)

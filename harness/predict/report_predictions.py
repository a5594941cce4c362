"""Adds stored predictions for other settings to an out-of-memory report. Nothing is computed: only
predictions already requested by the form for a new run, the Memory page or `stepscope predict` are used.
Does not import torch."""

from collections.abc import Sequence
from pathlib import Path

from harness.analysis.oom.explain import explain
from harness.analysis.oom.report import OomFacts, OomReport, PredictedChange
from harness.errors import SettingError
from harness.predict.advising import single_changes
from harness.predict.answer import Prediction, Target
from harness.predict.cache import RowCache, prediction_cache
from harness.predict.question import Question
from harness.records.run import DeviceFacts, SettingsRow
from harness.settings import Settings
from harness.settings.recorded import read_recorded
from harness.settings.spec import change


def add_predictions(
    report: OomReport, history: Sequence[SettingsRow], device: DeviceFacts | None, home: Path
) -> OomReport:
    """Return `report` with the stored predictions for the settings of the failed step."""
    settings = _failed_under(report.facts, history)
    if settings is None or device is None:
        return report
    predicted = _predicted(settings, Target.of(device), prediction_cache(home))
    return explain(report.facts, predicted, report.outcome) if predicted else report


def _failed_under(facts: OomFacts, history: Sequence[SettingsRow]) -> Settings | None:
    """Return the newest settings up to the failed step that match the report: a recovery may already have
    applied others to the same step."""
    for row in reversed([row for row in history if row.step <= facts.step]):
        recorded = read_recorded(row.settings)
        settings = None if recorded is None else recorded.complete
        if settings is None:
            continue
        expected = (facts.batch_size, facts.grad_accumulation, facts.amp, facts.checkpointing)
        actual = (settings.batch_size, settings.grad_accumulation, settings.amp.value)
        if (*actual, settings.activation_checkpointing) == expected:
            return settings
    return None


def _predicted(settings: Settings, target: Target, cache: RowCache[Prediction]) -> list[PredictedChange]:
    predicted = []
    try:
        whole = cache.get(Question.of(settings, target).key)
        for label, changes in single_changes(settings, target, None) if whole is not None else ():
            other = cache.get(Question.of(change(settings, changes), target).key)
            if whole is not None and other is not None and other.needed_bytes < whole.needed_bytes:
                saved_bytes = whole.needed_bytes - other.needed_bytes
                predicted.append(PredictedChange(label, other.needed_bytes, saved_bytes))
    except SettingError:
        return []
    return predicted
